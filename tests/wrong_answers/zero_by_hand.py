"""Answers to lesson 05 as learners write them: right ones, and wrong ones with the hint that each must get."""

import torch
import torch.distributed as dist
from learners_zero import (
    act_after_backward,
    act_at_one_parameter,
    act_at_the_first_of_the_next,
    act_before_it_is_there,
    act_by_names,
    act_by_what_is_there,
    act_counted_on_the_row,
    act_each,
    act_for_one_argument,
    act_in_first_backward,
    act_keeping_until_the_end,
    act_never,
    act_with_the_parameter,
    act_without_argument,
    hold,
    hold_by_a_hook_without_arguments,
    hold_by_fresh_tensors,
    hold_by_full_backward_hook,
    hold_by_output_hooks,
    hold_calling_at_once,
    hold_dropping_data,
    hold_everything,
    hold_gathering_once,
    hold_resizing_the_tensor,
    hold_with_a_hook_that_returns,
    hold_without_the_tensor,
)

from labs.checks.reference.zero_by_hand import gradient, partition, reduce_part, sharded_adamw


def by_edges(edges_of, keep_empty=True, place=0, last=0):
    """partition written with the edges of the parts."""

    def answer(sizes, world_size):
        edges, found, offset = edges_of(sum(sizes), world_size), [[] for _ in range(world_size)], 0
        for index, size in enumerate(sizes):
            for rank in range(world_size):
                begin, end = max(edges[rank], offset), min(edges[rank + 1], offset + size)
                if begin < end:
                    shift = 0 if place else offset
                    found[rank].append((index, begin - shift, end - shift + last))
            offset += size
        return found if keep_empty else [pieces for pieces in found if pieces]

    return answer


def partition_with_slices_of_nothing(sizes, world_size):
    part, owned, offset = -(-sum(sizes) // world_size), [[] for _ in range(world_size)], 0
    for index, size in enumerate(sizes):
        for rank in range(world_size):
            edges = rank * part - offset, (rank + 1) * part - offset
            owned[rank].append((index, *(min(size, max(0, edge)) for edge in edges)))
        offset += size
    return owned


def partition_with_lengths(sizes, world_size):
    """As torch.narrow counts: where it starts, and how long it is."""
    return [[(i, start, stop - start) for i, start, stop in pieces] for pieces in partition(sizes, world_size)]


def partition_for_two(sizes, world_size):
    return [*partition(sizes, 2), *([] for _ in range(world_size - 2))][:world_size]


def rounded_up(total, n):
    return [min(total, rank * -(-total // n)) for rank in range(n + 1)]


def rounded_down(total, n):
    return [rank * (total // n) for rank in range(n + 1)]


def rest_last(total, n):
    return [*rounded_down(total, n)[:-1], total]


def rest_first(total, n):
    return [rank * (total // n) + min(rank, total % n) for rank in range(n + 1)]


def partition_each(sizes, world_size):
    pieces = [by_edges(rounded_up)([size], world_size) for size in sizes]
    return [[(i, a, b) for i, own in enumerate(pieces) for _, a, b in own[rank]] for rank in range(world_size)]


def partition_in_turn(sizes, world_size):
    return [[(i, 0, sizes[i]) for i in range(rank, len(sizes), world_size)] for rank in range(world_size)]


def partition_whole(sizes, world_size):
    part, owned, offset = -(-sum(sizes) // world_size), [[] for _ in range(world_size)], 0
    for index, size in enumerate(sizes):
        owned[offset // part].append((index, 0, size))
        offset += size
    return owned


def partition_with_padding(sizes, world_size):
    owned, part = partition(sizes, world_size), -(-sum(sizes) // world_size)
    for rank in range(world_size):
        missing = part - sum(stop - start for _, start, stop in owned[rank])
        first = max(0, rank * part - sum(sizes[:-1])) if not owned[rank] else None
        if missing and owned[rank]:
            index, start, stop = owned[rank].pop()
            owned[rank].append((index, start, stop + missing))
        elif missing:
            owned[rank].append((len(sizes) - 1, first, first + part))
    return owned


def reduce(average=True, free=True, source=None, place=0):
    """reduce_part with one thing done otherwise."""

    def answer(row):
        n = dist.get_world_size()
        row.mine.grad = torch.empty_like(row.mine)
        whole = gradient(row) if source is None else source(row)
        if place:
            whole = torch.cat(list(whole.chunk(n))[place:] + list(whole.chunk(n))[:place])
        dist.reduce_scatter_tensor(row.mine.grad, whole)
        row.mine.grad /= n ** int(average)
        for parameter in row.parameters:
            if free:
                parameter.grad = None

    return answer


def packed_carelessly(row):
    pieces = [parameter.grad.flatten() for parameter in row.parameters]
    return torch.cat([*pieces, torch.empty(row.padding)])


def free(row):
    for parameter in row.parameters:
        parameter.grad = None


def reduce_nothing(row):
    row.mine.grad = gradient(row).chunk(dist.get_world_size())[dist.get_rank()].clone()
    free(row)


def reduce_nothing_but_divide(row):
    reduce_nothing(row)
    row.mine.grad /= dist.get_world_size()


def reduce_all(row, copy=True):
    whole = gradient(row)
    dist.all_reduce(whole)
    mine = whole.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()
    row.mine.grad = mine if copy else None
    free(row)


def reduce_all_and_keep_it(row):
    whole = gradient(row)
    dist.all_reduce(whole)
    whole /= dist.get_world_size()
    row.mine.grad = whole.chunk(dist.get_world_size())[dist.get_rank()]
    free(row)


def reduce_all_on_the_side(row):
    reduce_all(row)
    row.everything = [*getattr(row, "everything", []), torch.zeros_like(row.whole)]


def reduce_to_each_owner(row):
    parts = list(gradient(row).chunk(dist.get_world_size()))
    for owner, part in enumerate(parts):
        dist.reduce(part, owner)
    row.mine.grad = parts[dist.get_rank()].clone() / dist.get_world_size()
    free(row)


def reduce_without_a_place(row):
    part = torch.empty_like(row.mine)
    dist.reduce_scatter_tensor(part, gradient(row))
    free(row)


def reduce_whole(row):
    whole = gradient(row)
    dist.all_reduce(whole)
    row.mine.grad = whole / dist.get_world_size()
    free(row)


def reduce_after_freeing(row):
    free(row)
    reduce_part(row)


def reduce_into_the_row(row):
    row.whole.copy_(gradient(row))
    row.mine.grad = torch.empty_like(row.mine)
    dist.reduce_scatter_tensor(row.mine.grad, row.whole)
    row.mine.grad /= dist.get_world_size()
    free(row)


def reduce_without_a_call(row):
    row.mine.grad = torch.empty_like(row.mine) / dist.get_world_size()
    free(row)


def reduce_in_double(row):
    row.mine.grad = torch.empty_like(row.mine, dtype=torch.double)
    dist.reduce_scatter_tensor(row.mine.grad, gradient(row).double())
    free(row)


def reduce_with_a_list(row):
    row.mine.grad = torch.empty_like(row.mine)
    dist.reduce_scatter(row.mine.grad, list(gradient(row).chunk(dist.get_world_size())))
    row.mine.grad.div_(dist.get_world_size())
    free(row)


def reduce_with_divided_input(row):
    part = torch.zeros(len(row.mine))
    dist.reduce_scatter_tensor(part, gradient(row) / dist.get_world_size())
    row.mine.grad = part
    free(row)


def adamw(optimizer=torch.optim.AdamW, take=None, keep=None, clear=True, spread=None, again=False):
    """sharded_adamw with one thing done otherwise."""

    def answer(rows, **options):
        options = keep(options) if keep else options
        made = optimizer([take(row) if take else row.mine for row in rows], **options)

        def step():
            nonlocal made
            if again:
                made = optimizer([row.mine for row in rows], **options)
            made.step()
            if clear:
                made.zero_grad()
            for row in rows:
                (spread or gather_parts)(row)

        return step

    return answer


def gather_parts(row):
    dist.all_gather_into_tensor(row.whole, row.mine.detach())


def gather_as_list(row):
    dist.all_gather(list(row.whole.chunk(dist.get_world_size())), row.mine.detach())


def gather_by_sum(row):
    mine = row.mine.detach().clone()
    row.whole.zero_()
    row.mine.data.copy_(mine)
    dist.all_reduce(row.whole)


def gather_by_broadcasts(row):
    for owner, part in enumerate(row.whole.chunk(dist.get_world_size())):
        dist.broadcast(part, owner)


def gather_into_another(row):
    row.whole = torch.empty_like(row.whole)
    gather_parts(row)


def gather_twice(row):
    gather_parts(row)
    gather_parts(row)


def whole_adamw(rows, **options):
    """Plain AdamW behind the name: right in all numbers, and it shards nothing."""
    wholes = [torch.nn.Parameter(row.whole) for row in rows]
    made = torch.optim.AdamW(wholes, **options)

    def step():
        for row, whole in zip(rows, wholes, strict=True):
            whole.grad = torch.empty_like(row.whole)
            dist.all_gather_into_tensor(whole.grad, row.mine.grad)
            row.mine.grad = None
        made.step()
        made.zero_grad()

    return step


def adamw_of_a_neighbour(rows, **options):
    size = dist.get_world_size()
    others = [torch.nn.Parameter(row.whole.chunk(size)[(dist.get_rank() + 1) % size]) for row in rows]
    made = torch.optim.AdamW(others, **options)

    def step():
        for row, other in zip(rows, others, strict=True):
            other.grad, row.mine.grad = row.mine.grad, None
        made.step()
        for row, other in zip(rows, others, strict=True):
            parts = [torch.empty_like(other) for _ in range(size)]
            dist.all_gather(parts, other.detach())
            row.whole.copy_(torch.cat(parts[-1:] + parts[:-1]))

    return step


def adamw_of_a_copy(rows, **options):
    copies = [torch.nn.Parameter(row.mine.detach().clone()) for row in rows]
    made = torch.optim.AdamW(copies, **options)

    def step():
        for row, copy in zip(rows, copies, strict=True):
            copy.grad, row.mine.grad = row.mine.grad, None
        made.step()
        for row in rows:
            gather_parts(row)

    return step


def adamw_of_parameters(rows, **options):
    """The optimizer of one process: reduce_part has taken the gradients that it looks for."""
    made = torch.optim.AdamW([p for row in rows for p in row.parameters], **options)

    def step():
        made.step()
        made.zero_grad()
        for row in rows:
            gather_parts(row)

    return step


def adamw_called_at_once(rows, **options):
    return sharded_adamw(rows, **options)()


def adamw_by_hand(rows, lr, betas, eps, weight_decay):
    first = [torch.zeros_like(row.mine) for row in rows]
    second = [torch.zeros_like(row.mine) for row in rows]
    steps = 0

    @torch.no_grad()
    def step():
        nonlocal steps
        steps += 1
        for row, m, v in zip(rows, first, second, strict=True):
            g, row.mine.grad = row.mine.grad, None
            m.lerp_(g, 1 - betas[0])
            v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
            row.mine.mul_(1 - lr * weight_decay)
            scale = (v / (1 - betas[1] ** steps)).sqrt() + eps
            row.mine.sub_(lr * (m / (1 - betas[0] ** steps)) / scale)
            gather_as_list(row)

    return step


RIGHT = [
    ("zero_by_hand.partition", by_edges(rounded_up)),
    ("zero_by_hand.reduce_part", reduce_with_a_list),
    ("zero_by_hand.reduce_part", reduce_with_divided_input),
    ("zero_by_hand.sharded_adamw", adamw_by_hand),
    ("zero_by_hand.at_last_gradient", act_by_names),
    ("zero_by_hand.gather_compute_free", hold_by_output_hooks),
]

WRONG = [
    ("zero_by_hand.partition", by_edges(rounded_down), "belong to nobody"),
    ("zero_by_hand.partition", by_edges(rest_last), "The last rank gets more"),
    ("zero_by_hand.partition", by_edges(rest_first), "The first ranks get an element more"),
    ("zero_by_hand.partition", partition_each, "cut each parameter by itself"),
    ("zero_by_hand.partition", partition_in_turn, "deal out whole parameters"),
    ("zero_by_hand.partition", partition_whole, "to one rank as a whole"),
    ("zero_by_hand.partition", by_edges(rounded_up, place=1), "places in the row"),
    ("zero_by_hand.partition", by_edges(rounded_up, last=-1), "Python's slices"),
    ("zero_by_hand.partition", partition_with_padding, "Padding belongs to no parameter"),
    ("zero_by_hand.partition", partition_with_slices_of_nothing, "Some slices hold nothing"),
    ("zero_by_hand.partition", partition_with_lengths, "not how long it is"),
    ("zero_by_hand.partition", partition_for_two, "and not into 2"),
    ("zero_by_hand.partition", by_edges(rounded_up, keep_empty=False), "an empty one for a rank"),
    ("zero_by_hand.reduce_part", reduce_without_a_place, "Assign this rank's part"),
    ("zero_by_hand.reduce_part", reduce(average=False), "That is the sum over ranks"),
    ("zero_by_hand.reduce_part", reduce(average=2), "divided by the number of ranks twice"),
    ("zero_by_hand.reduce_part", reduce_nothing, "nothing has come from the other ranks"),
    ("zero_by_hand.reduce_part", reduce_nothing_but_divide, "is not in it"),
    ("zero_by_hand.reduce_part", reduce(place=1), "Rank r owns the r-th part"),
    ("zero_by_hand.reduce_part", reduce(source=packed_carelessly), "The padding has to be zeros"),
    ("zero_by_hand.reduce_part", reduce(free=False), "keeps all gradients beside its part"),
    ("zero_by_hand.reduce_part", reduce_all_and_keep_it, "a view keeps all of it"),
    ("zero_by_hand.reduce_part", reduce_all, "Only the first half is needed"),
    ("zero_by_hand.reduce_part", reduce_all_on_the_side, "Keep nothing from one call to the next"),
    ("zero_by_hand.reduce_part", reduce_to_each_owner, "for the row does all of it"),
    ("zero_by_hand.reduce_part", reduce_into_the_row, "use another tensor for gradients"),
    ("zero_by_hand.reduce_part", reduce_without_a_call, "Nothing has been written into it yet"),
    ("zero_by_hand.reduce_part", reduce_in_double, "must have the type of row.mine"),
    ("zero_by_hand.reduce_part", reduce_whole, "not the whole row"),
    ("zero_by_hand.reduce_part", reduce_after_freeing, "Let go of gradients after the collective"),
    ("zero_by_hand.sharded_adamw", whole_adamw, "Nothing is sharded"),
    ("zero_by_hand.sharded_adamw", adamw(spread=lambda row: None), "the ranks drift apart"),
    ("zero_by_hand.sharded_adamw", adamw(optimizer=torch.optim.Adam), "AdamW keeps them apart"),
    ("zero_by_hand.sharded_adamw", adamw(keep=lambda options: {}), "AdamW with its own defaults"),
    ("zero_by_hand.sharded_adamw", adamw(again=True), "Make the optimizer once"),
    ("zero_by_hand.sharded_adamw", adamw(clear=False), "Clear the gradients of the parts"),
    ("zero_by_hand.sharded_adamw", adamw(spread=gather_by_sum), "twice the bytes of an all-gather"),
    ("zero_by_hand.sharded_adamw", adamw(spread=gather_by_broadcasts), "that is one all-gather for each row"),
    ("zero_by_hand.sharded_adamw", adamw(spread=gather_twice), "One all-gather for each row, in order"),
    ("zero_by_hand.sharded_adamw", adamw(spread=gather_into_another), "the ranks drift apart"),
    ("zero_by_hand.sharded_adamw", adamw_of_a_neighbour, "own part is wrong after one step"),
    ("zero_by_hand.sharded_adamw", adamw_of_a_copy, "Do adamw.step() and the all-gather reach"),
    ("zero_by_hand.sharded_adamw", adamw_of_parameters, "AdamW keeps no averages"),
    ("zero_by_hand.sharded_adamw", adamw_called_at_once, "Return the function step itself"),
    ("zero_by_hand.at_last_gradient", act_after_backward, "that is stage 1"),
    ("zero_by_hand.at_last_gradient", act_at_the_first_of_the_next, "that is stage 1"),
    ("zero_by_hand.at_last_gradient", act_each, "act is called for each gradient"),
    ("zero_by_hand.at_last_gradient", act_at_one_parameter, "not the last one to be ready"),
    ("zero_by_hand.at_last_gradient", act_in_first_backward, "begin to count anew"),
    ("zero_by_hand.at_last_gradient", act_never, "gradients are ready: act(row)"),
    ("zero_by_hand.at_last_gradient", act_with_the_parameter, "Call it with the row"),
    ("zero_by_hand.at_last_gradient", act_before_it_is_there, "before the gradient stands in parameter.grad"),
    ("zero_by_hand.at_last_gradient", act_keeping_until_the_end, "keep no gradient"),
    ("zero_by_hand.at_last_gradient", act_counted_on_the_row, "counts for itself"),
    ("zero_by_hand.at_last_gradient", act_by_what_is_there, "counts for itself"),
    ("zero_by_hand.at_last_gradient", act_without_argument, "with the parameter, and with nothing else"),
    ("zero_by_hand.at_last_gradient", act_for_one_argument, "The check calls your function"),
    ("zero_by_hand.gather_compute_free", hold_everything, "free it for the first time"),
    ("zero_by_hand.gather_compute_free", hold(after_forward=False), "What forward has gathered stays"),
    ("zero_by_hand.gather_compute_free", hold(after_backward=False), "What backward has gathered stays"),
    ("zero_by_hand.gather_compute_free", hold(before_backward=False), "computed with a row that is not there"),
    ("zero_by_hand.gather_compute_free", hold(before_forward=False), "computed with a row that is not there"),
    ("zero_by_hand.gather_compute_free", hold_by_full_backward_hook, "computed with a row that is not there"),
    ("zero_by_hand.gather_compute_free", hold_by_fresh_tensors, "autograd's views of it"),
    ("zero_by_hand.gather_compute_free", hold_gathering_once, "What forward has gathered stays"),
    ("zero_by_hand.gather_compute_free", hold_with_a_hook_that_returns, "takes the place of the output"),
    ("zero_by_hand.gather_compute_free", hold_by_a_hook_without_arguments, "def f(*_) takes any"),
    ("zero_by_hand.gather_compute_free", hold_calling_at_once, "Hand on f itself"),
    ("zero_by_hand.gather_compute_free", hold_dropping_data, "no view of row.whole any more"),
    ("zero_by_hand.gather_compute_free", hold_resizing_the_tensor, "changes the shape and keeps the memory"),
    ("zero_by_hand.gather_compute_free", hold_without_the_tensor, "gather fills row.whole: keep the tensor"),
    ("zero_by_hand.gather_compute_free", hold(num_gathers=2), "Twice a use is enough"),
]
