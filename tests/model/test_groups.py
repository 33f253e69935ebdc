"""What goes through a model together, by hand."""

from stages.model.groups import Completed, runs, sharing


def test_whole_sequences_share_what_all_of_them_begin_with():
    assert sharing([[5, 6, 7, 8], [5, 6, 9]]) == Completed([5, 6], [[7, 8], [9]])
    assert sharing([[5, 6], [7, 6]]) == Completed([], [[5, 6], [7, 6]])


def test_a_sequence_that_another_begins_with_keeps_its_last_token():
    # its score is read there, and a completion of no token has none
    assert sharing([[5, 6, 7], [5, 6, 7, 8, 9]]) == Completed([5, 6], [[7], [7, 8, 9]])


def test_neighbours_run_together_while_they_fit_and_each_at_least_alone():
    groups = [Completed([1] * size, [[2]]) for size in (3, 4, 9, 1, 1)]

    def fits(some):
        return sum(len(group.prompt) for group in some) <= 7

    assert runs(groups, fits) == [range(2), range(2, 3), range(3, 5)]
    assert runs([], fits) == []
