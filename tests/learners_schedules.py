"""Schedules of the puzzle as learners write them: single habits of the right one switched off."""


def moves(ahead_forward=True, ahead_backward=True, keeps_last=True, frees=True, keep_two=False, reduces=True):
    """A schedule with single habits switched off."""

    def schedule():
        found = ["gather 1"]
        for layer in range(1, 5):
            if ahead_forward and layer < 4:
                found.append(f"gather {layer + 1}")
            if not ahead_forward and layer > 1:
                found.append(f"gather {layer}")
            found.append(f"forward {layer}")
            stays = layer == 4 and keeps_last or keep_two and layer == 3
            found += [f"free {layer}"] if frees and not stays else []
        for layer in range(4, 0, -1):
            held = not frees or layer == 4 and keeps_last or keep_two and layer == 3
            if not held and (not ahead_backward or layer == 4):
                found.append(f"gather {layer}")
            if frees and ahead_backward and layer > 1 and not (keep_two and layer == 4):
                found.append(f"gather {layer - 1}")
            found += [f"backward {layer}", f"free {layer}"] + ([f"reduce {layer}"] if reduces else [])
        return found

    return schedule


def schedule_as_text():
    return ", ".join(moves()())


def schedule_that_keeps_two():
    return moves(keep_two=True)()


def everything_first():
    layers = range(1, 5)
    found = [f"gather {n}" for n in layers] + [f"forward {n}" for n in layers]
    for n in reversed(layers):
        found += [f"backward {n}", f"free {n}", f"reduce {n}"]
    return found


def late_twice():
    found = moves()()
    for move, before in (("gather 3", "forward 3"), ("gather 1", "backward 1")):
        found.remove(move) if move == "gather 3" else found.pop(len(found) - 1 - found[::-1].index(move))
        found.insert(found.index(before), move)
    return found


def without(*left_out):
    return lambda: [move for move in moves()() if move not in left_out]


def free_before_compute():
    return ["gather 1", "gather 2", "free 2", *moves()()[2:]]


def reduce_before_backward():
    found = moves()()
    place = found.index("backward 4")
    return [*found[:place], "reduce 4", *found[place:]]


def schedule_of_numbers():
    return [1, 2, 3, 4]


def backward_in_forward_order():
    found = ["gather 1", "gather 2", "gather 3", "gather 4"]
    return [*found, *(f"forward {n}" for n in range(1, 5)), *(f"free {n}" for n in (2, 3)), "backward 1"]
