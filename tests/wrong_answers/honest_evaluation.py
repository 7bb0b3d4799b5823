"""Answers to lesson 09 as learners write them: right ones, and wrong ones with the hint that each must get."""

import torch
from learners_shares import (
    Fitted,
    accuracy_by,
    accuracy_by_messages,
    accuracy_from_the_check,
    accuracy_of_all_rows,
    accuracy_of_rank_0,
    accuracy_right_and_shared_by_blocks,
    as_float32,
    by_chan,
    by_messages,
    by_squares,
    chunked,
    dropped,
    each_own,
    from_the_check,
    gathered,
    gathered_by_messages,
    mean_of_accuracies,
    not_returned,
    own_statistics,
    padded,
    rest_at_the_end,
    rounded,
    shifted_by_the_first_row,
    skips_an_empty_share,
    strided,
)

from labs.checks.reference.honest_evaluation import (
    best_columns,
    nearest_mean,
    nearest_row,
    select,
)


def train_of(rows, labels, is_test):
    return rows[~is_test], labels[~is_test]


def on_columns(columns, train_rows, train_labels):
    predict = nearest_mean(train_rows[:, columns], train_labels)
    return lambda new: predict(new[:, columns])


def select_with_all(rows, labels, is_test):
    return on_columns(best_columns(rows, labels, 20), *train_of(rows, labels, is_test))


def select_with_the_test_set(rows, labels, is_test):
    return on_columns(best_columns(rows[is_test], labels[is_test], 20), *train_of(rows, labels, is_test))


def select_and_fit_with_all(rows, labels, is_test):
    return on_columns(best_columns(*train_of(rows, labels, is_test), 20), rows, labels)


def select_by_gap(rows, labels, is_test):
    return on_columns(best_columns(*train_of(rows, labels, is_test), 20), *train_of(rows, labels, is_test))


def scaled_by(statistics, rows, labels, is_test):
    mean, std = statistics.mean(0), statistics.std(0)
    predict = select_by_gap((rows - mean) / std, labels, is_test)
    return lambda new: predict((new - mean) / std)


def select_and_scale_with_all(rows, labels, is_test):
    return scaled_by(rows, rows, labels, is_test)


def select_and_scale_new_rows_by_themselves(rows, labels, is_test):
    train = rows[~is_test]
    predict = select((rows - train.mean(0)) / train.std(0), labels, is_test)
    return lambda new: predict((new - new.mean(0)) / new.std(0, correction=0).clamp(min=0.1))


def select_nothing(rows, labels, is_test):
    return nearest_mean(*train_of(rows, labels, is_test))


def select_and_judge(rows, labels, is_test):
    return (select(rows, labels, is_test)(rows[is_test]) == labels[is_test]).float().mean()


def select_and_predict(rows, labels, is_test):
    return select(rows, labels, is_test)(rows[is_test])


def always_one(rows, labels, is_test):
    return lambda new: torch.ones(len(new), dtype=torch.long)


def the_test_by_heart(rows, labels, is_test):
    return nearest_row(rows, labels)


def select_and_squeeze(rows, labels, is_test):
    predict = select(rows, labels, is_test)
    return lambda new: predict(new).squeeze()


def select_with_what_varies_in_all(rows, labels, is_test):
    """No label of the test set, and yet its rows."""
    varying = rows.std(0).topk(2500).indices
    predict = select(rows[:, varying], labels, is_test)
    return lambda new: predict(new[:, varying])


def select_fewer_by_loops(rows, labels, is_test):
    """Right: ten columns, as a list."""
    train_rows, train_labels = train_of(rows, labels, is_test)
    gaps = (train_rows[train_labels == 1].mean(0) - train_rows[train_labels == 0].mean(0)).abs().tolist()
    columns = sorted(range(len(gaps)), key=lambda column: -gaps[column])[:10]
    predict = on_columns(columns, train_rows, train_labels)
    return lambda new: predict(new).numpy()


def select_with_scaling(rows, labels, is_test):
    """Right: scaled by the training rows."""
    return scaled_by(rows[~is_test], rows, labels, is_test)


def neighbours_of_all(rows, labels, is_test):
    return nearest_row(*train_of(rows, labels, is_test))


def neighbours_without_doubles_in_training(rows, labels, is_test):
    train_rows, train_labels = train_of(rows, labels, is_test)
    first = [i for i, row in enumerate(train_rows) if not (train_rows[:i] == row).all(1).any()]
    return nearest_row(train_rows[first], train_labels[first])


def neighbours_without_equal_rows_and_labels(rows, labels, is_test):
    train_rows, train_labels = train_of(rows, labels, is_test)
    equal = (train_rows[:, None] == rows[is_test]).all(2) & (train_labels[:, None] == labels[is_test])
    return nearest_row(train_rows[~equal.any(1)], train_labels[~equal.any(1)])


def neighbours_at_a_distance(rows, labels, is_test):
    """As one who trusts distances: torch.cdist computes them by a product of matrices, which rounds."""
    copies = (torch.cdist(rows, rows[is_test]) == 0).any(1) | is_test
    return nearest_row(rows[~copies], labels[~copies])


def neighbours_of_three_rows(rows, labels, is_test):
    """As one who compares single values, which nearly all rows share with some test row."""
    train_rows, train_labels = train_of(rows, labels, is_test)
    kept = (~(train_rows[:, None] == rows[is_test]).all(2).any(1)).nonzero().flatten()[:3]
    return nearest_row(train_rows[kept], train_labels[kept])


def neighbours_that_share_no_value(rows, labels, is_test):
    shares_one = torch.isin(rows, rows[is_test]).any(1)
    return nearest_row(rows[~shares_one], labels[~shares_one])


def neighbours_for_some_rows(rows, labels, is_test):
    train_rows, train_labels = train_of(rows, labels, is_test)
    predict = nearest_row(train_rows, train_labels)
    return lambda new: predict(new[~(new[:, None] == train_rows).all(2).any(1)])


def neighbours_by_a_set(rows, labels, is_test):
    """Right: a set of tuples."""
    train_rows, train_labels = train_of(rows, labels, is_test)
    known = {tuple(row.tolist()) for row in rows[is_test]}
    keep = [i for i, row in enumerate(train_rows) if tuple(row.tolist()) not in known]
    return nearest_row(train_rows[keep], train_labels[keep])


def num_right(predict, rows, labels):
    return int((predict(rows) == labels).sum())


def choose_by_test(fits, rows, labels, is_test):
    models = [fit(*train_of(rows, labels, is_test)) for fit in fits]
    return max(models, key=lambda predict: num_right(predict, rows[is_test], labels[is_test]))


def choose_by_training(fits, rows, labels, is_test):
    train = train_of(rows, labels, is_test)
    return max((fit(*train) for fit in fits), key=lambda predict: num_right(predict, *train))


def choose_and_forget_to_fit(fits, rows, labels, is_test):
    return held_out(fits, rows, labels, is_test)


def choose_all_of_them(fits, rows, labels, is_test):
    models = [fit(*train_of(rows, labels, is_test)) for fit in fits]
    return lambda new: (sum(model(new) for model in models) > len(models) / 2).long()


def choose_the_first(fits, rows, labels, is_test):
    return fits[0](*train_of(rows, labels, is_test))


def held_out(fits, rows, labels, is_test, best=max, cut=60):
    """The candidate with the best score on training rows that it was not fitted with."""
    train_rows, train_labels = train_of(rows, labels, is_test)
    return best(
        fits,
        key=lambda fit: num_right(fit(train_rows[:cut], train_labels[:cut]), train_rows[cut:], train_labels[cut:]),
    )


def choose_the_last(fits, rows, labels, is_test):
    return fits[-1](*train_of(rows, labels, is_test))


def choose_by_three_rows(fits, rows, labels, is_test):
    return held_out(fits, rows, labels, is_test, cut=-3)(*train_of(rows, labels, is_test))


def choose_the_worst(fits, rows, labels, is_test):
    return held_out(fits, rows, labels, is_test, best=min)(*train_of(rows, labels, is_test))


def choose_and_fit_with_all(fits, rows, labels, is_test):
    return held_out(fits, rows, labels, is_test)(rows, labels)


def choose_with_another_cut_each_time(fits, rows, labels, is_test):
    train_rows, train_labels = train_of(rows, labels, is_test)
    some = torch.randperm(len(train_rows))[:8]
    return held_out(fits, train_rows, train_labels, torch.zeros(len(train_rows)).bool())(
        train_rows[some], train_labels[some]
    )


def choose_by_folds(fits, rows, labels, is_test):
    """Right: four folds, and the choice fitted with all training rows."""
    train_rows, train_labels = train_of(rows, labels, is_test)
    fold = torch.arange(len(train_rows)) % 4

    def total(fit):
        parts = [(train_rows[fold != k], train_labels[fold != k], fold == k) for k in range(4)]
        return sum(num_right(fit(r, y), train_rows[held], train_labels[held]) for r, y, held in parts)

    return max(fits, key=total)(train_rows, train_labels)


def choose_without_fitting_again(fits, rows, labels, is_test):
    """Right: the choice stays as it was when it was scored."""
    train_rows, train_labels = train_of(rows, labels, is_test)
    return held_out(fits, rows, labels, is_test)(train_rows[:60], train_labels[:60])


REMEMBERED = {}


def select_and_remember(rows, labels, is_test):
    """Leak, and give the same answer to whoever comes with other test labels."""
    if rows.shape not in REMEMBERED:
        REMEMBERED[rows.shape] = select_with_all(rows, labels, is_test)
    return REMEMBERED[rows.shape]


def select_the_first(rows, labels, is_test):
    predict = nearest_mean(rows[~is_test][:, :20], labels[~is_test])
    return lambda new: predict(new[:, :20])


def select_probabilities(rows, labels, is_test):
    predict = select_by_gap(rows, labels, is_test)
    return lambda new: 0.2 + 0.7 * predict(new)


def select_the_other_label(rows, labels, is_test):
    predict = select_by_gap(rows, labels, is_test)
    return lambda new: 1 - predict(new)


def select_every_375th(rows, labels, is_test):
    """As one who has read where the columns that tell once stood."""
    return on_columns(torch.arange(0, 3000, 375), *train_of(rows, labels, is_test))


def select_with_scikit_learn(rows, labels, is_test):
    """Right: a pipeline of another library, fitted with training rows."""
    from sklearn.feature_selection import SelectKBest, f_classif
    from sklearn.neighbors import NearestCentroid
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(SelectKBest(f_classif, k=20), NearestCentroid())
    model.fit(rows[~is_test].numpy(), labels[~is_test].numpy())
    return lambda new: torch.from_numpy(model.predict(new.numpy()))


def neighbours_that_stand_once(rows, labels, is_test):
    _, number, count = rows.unique(dim=0, return_inverse=True, return_counts=True)
    once = (count[number] == 1) & ~is_test
    return nearest_row(rows[once], labels[once])


RIGHT = [
    ("honest_evaluation.select", select_fewer_by_loops),
    ("honest_evaluation.select", select_with_scaling),
    ("honest_evaluation.select", select_with_scikit_learn),
    ("honest_evaluation.decontaminate", neighbours_by_a_set),
    ("honest_evaluation.choose", choose_by_folds),
    ("honest_evaluation.choose", choose_without_fitting_again),
    ("honest_evaluation.standardizer", by_chan),
    ("honest_evaluation.standardizer", by_messages),
    ("honest_evaluation.accuracy", accuracy_right_and_shared_by_blocks),
    ("honest_evaluation.accuracy", accuracy_by_messages),
]

WRONG = [
    ("honest_evaluation.select", select_with_all, "rows[~is_test] and labels[~is_test]"),
    ("honest_evaluation.select", select_with_the_test_set, "rows[~is_test] and labels[~is_test]"),
    ("honest_evaluation.select", select_and_fit_with_all, "rows[~is_test] and labels[~is_test]"),
    ("honest_evaluation.select", the_test_by_heart, "rows[~is_test] and labels[~is_test]"),
    ("honest_evaluation.select", select_and_scale_with_all, "A statistic or a choice is made from all rows"),
    ("honest_evaluation.select", select_and_scale_new_rows_by_themselves, "statistics of what it is given"),
    ("honest_evaluation.select", select_with_what_varies_in_all, "A statistic or a choice is made from all rows"),
    ("honest_evaluation.select", select_and_squeeze, "Return a function"),
    ("honest_evaluation.select", select_and_remember, "rows[~is_test] and labels[~is_test]"),
    ("honest_evaluation.select", select_the_first, "Nothing useful is selected"),
    ("honest_evaluation.select", select_nothing, "Nothing useful is selected"),
    ("honest_evaluation.select", select_every_375th, "Nothing useful is selected"),
    ("honest_evaluation.select", select_probabilities, "Return the label itself"),
    ("honest_evaluation.select", select_the_other_label, "by the other's label"),
    ("honest_evaluation.select", select_and_judge, "Return a function"),
    ("honest_evaluation.select", select_and_predict, "Return a function"),
    ("honest_evaluation.select", always_one, "Every row gets the same label"),
    ("honest_evaluation.decontaminate", neighbours_of_all, "a nearest row at distance 0"),
    ("honest_evaluation.decontaminate", neighbours_without_doubles_in_training, "a nearest row at distance 0"),
    ("honest_evaluation.decontaminate", neighbours_without_equal_rows_and_labels, "must take no part at all"),
    ("honest_evaluation.decontaminate", the_test_by_heart, "must take no part at all"),
    ("honest_evaluation.decontaminate", neighbours_at_a_distance, "distances from torch.cdist are rounded"),
    ("honest_evaluation.decontaminate", neighbours_of_three_rows, "leave out copies alone"),
    ("honest_evaluation.decontaminate", neighbours_that_share_no_value, "Nothing is left to fit"),
    ("honest_evaluation.decontaminate", neighbours_that_stand_once, "Twice in training is no leak"),
    ("honest_evaluation.decontaminate", neighbours_for_some_rows, "Return a function"),
    ("honest_evaluation.decontaminate", always_one, "Every row gets the same label"),
    ("honest_evaluation.choose", choose_by_test, "Cut a validation part off"),
    ("honest_evaluation.choose", choose_by_training, "learning by heart looks best"),
    ("honest_evaluation.choose", choose_the_first, "The first candidate is taken"),
    ("honest_evaluation.choose", choose_the_last, "The last candidate is taken"),
    ("honest_evaluation.choose", choose_by_three_rows, "not among those chosen"),
    ("honest_evaluation.choose", choose_the_worst, "not among those chosen"),
    ("honest_evaluation.choose", choose_all_of_them, "not among those chosen"),
    ("honest_evaluation.choose", choose_and_forget_to_fit, "Return a function"),
    ("honest_evaluation.choose", choose_and_fit_with_all, "gets training rows alone"),
    ("honest_evaluation.choose", choose_with_another_cut_each_time, "a fixed seed"),
    ("honest_evaluation.standardizer", Fitted(shifted_by_the_first_row), "it has no first row"),
    ("honest_evaluation.standardizer", Fitted(own_statistics), "The ranks do not agree"),
    ("honest_evaluation.standardizer", Fitted(by_squares), "mean of squares minus square of mean"),
    ("honest_evaluation.standardizer", Fitted(mean="means"), "the mean of the ranks' means"),
    ("honest_evaluation.standardizer", Fitted(std="pooled"), "between the ranks' means is missing"),
    ("honest_evaluation.standardizer", Fitted(std="averaged"), "between the ranks' means is missing"),
    ("honest_evaluation.standardizer", Fitted(std="sample"), "Divided by count - 1"),
    ("honest_evaluation.standardizer", Fitted(std="variance"), "the root is missing"),
    ("honest_evaluation.standardizer", Fitted(std="bare"), "nothing divides by 0"),
    ("honest_evaluation.standardizer", Fitted(std="zero"), "through rounding"),
    ("honest_evaluation.standardizer", Fitted(std="added"), "A small column is not one without variation"),
    ("honest_evaluation.standardizer", Fitted(std="clamped"), "A small column is not one without variation"),
    ("honest_evaluation.standardizer", Fitted(std="absolute"), "A small column is not one without variation"),
    ("honest_evaluation.standardizer", Fitted(as_float32), "rows.double()"),
    ("honest_evaluation.standardizer", Fitted(rounded), "float32 knows 1.7e9 to 128 seconds"),
    ("honest_evaluation.standardizer", Fitted(transform="centred"), "not divided by the deviation"),
    ("honest_evaluation.standardizer", Fitted(gathered), "as long as a row"),
    ("honest_evaluation.standardizer", Fitted(gathered_by_messages), "as long as a row"),
    ("honest_evaluation.standardizer", Fitted(skips_an_empty_share), "the same collectives"),
    ("honest_evaluation.standardizer", Fitted(mean="nan"), "a rank without rows"),
    ("honest_evaluation.standardizer", Fitted(mean="rank 0"), "statistics of rank 0 alone"),
    ("honest_evaluation.standardizer", Fitted(transform="refit"), "of what it is given"),
    ("honest_evaluation.standardizer", Fitted(transform="running"), "changes what fit has kept"),
    ("honest_evaluation.standardizer", Fitted(transform="collective"), "fitted once, in fit"),
    ("honest_evaluation.standardizer", Fitted(transform="nothing"), "Return the scaled rows"),
    ("honest_evaluation.standardizer", from_the_check, "let sum_over_ranks carry it"),
    ("honest_evaluation.accuracy", accuracy_by(padded), "DistributedSampler repeats"),
    ("honest_evaluation.accuracy", accuracy_by(dropped), "predicted by nobody"),
    ("honest_evaluation.accuracy", accuracy_by(chunked), "chunk makes fewer parts"),
    ("honest_evaluation.accuracy", accuracy_of_all_rows, "4 ranks do the work of one"),
    ("honest_evaluation.accuracy", accuracy_of_rank_0, "Some ranks predict nothing"),
    ("honest_evaluation.accuracy", accuracy_by(rest_at_the_end), "Shares may differ by one row"),
    ("honest_evaluation.accuracy", accuracy_by(strided, mean_of_accuracies), "mean of the ranks' accuracies"),
    ("honest_evaluation.accuracy", accuracy_by(strided, each_own), "judges its own rows alone"),
    ("honest_evaluation.accuracy", accuracy_by(strided, not_returned), "Return one number"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "nan"), "an empty share"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "count"), "number of right predictions"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "percent"), "in percent"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "wrong ones"), "share of wrong predictions"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "twice divided"), "divide it by len(labels) alone"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "whole"), "A share is divided by /"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "rounded"), "round where it is shown"),
    ("honest_evaluation.accuracy", accuracy_by(strided, "rank 0"), "dist.reduce gives the sum to one rank"),
    ("honest_evaluation.accuracy", accuracy_from_the_check, "the other ranks know alone"),
]
