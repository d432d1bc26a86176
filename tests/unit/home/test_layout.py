"""The paths in a home. Every path is parsed to the values that it was made of, and no other module spells a path."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.home import layout
from spark_jobs.protocol.ids import (
    AttemptNumber,
    CheckpointId,
    InputName,
    OwnerNumber,
    RoundNumber,
    RunId,
    SinkName,
    StageName,
    new_work_directory_id,
    start_request_id,
)

ROOT = Path(__file__).parents[3]
DIRECTORIES = (
    *(layout.ATTEMPTS, layout.REQUESTS, layout.RESPONSES, layout.ROUNDS, layout.MANIFESTS, layout.CHECKPOINTS, layout.HISTORY),
    *(layout.LOGS, layout.CHANNELS, layout.TOMBSTONES, layout.SAVEPOINTS, layout.WORK),
)
SPELLED = re.compile(rf"({'|'.join(DIRECTORIES)})/|(pipeline|status)\.json")
NOISE = ("", ".a.tmp", "a.json", "1", "1.json.1", "-1.json", "1.txt", "²")


def name(path: str) -> str:
    return path.rpartition("/")[2]


def literals(path: Path) -> Iterator[str]:
    """Yields the strings of a module that are not docstrings."""
    module = ast.parse(path.read_text())
    said = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def test_one_listing_tells_claimed_attempts_begun_attempts_and_owners_apart() -> None:
    one, two, ten = map(AttemptNumber, (1, 2, 10))
    paths = [layout.attempt_path(ten), layout.attempt_path(one), layout.begun_path(one), layout.begun_path(two)]
    paths += [layout.owner_path(two, OwnerNumber(9)), layout.owner_path(two, OwnerNumber(10))]
    paths += [layout.attempt_pin_path(one, InputName("begun")), layout.attempt_pin_path(AttemptNumber(3), InputName("1"))]
    found = layout.attempt_names([*map(name, paths), *NOISE])
    assert found == ((1, 10), (1,), {2: 10}), "an attempt that was not claimed has not begun, whatever says so"


def test_rounds_are_distinguished_from_their_pins() -> None:
    paths = [
        layout.round_path(RoundNumber(10)),
        layout.round_path(RoundNumber(9)),
        layout.round_pin_path(RoundNumber(11), InputName("a")),
    ]
    assert layout.round_numbers([*map(name, paths), *NOISE]) == [9, 10]


def test_only_manifests_with_numbers_in_their_usual_form_count() -> None:
    assert layout.manifest_numbers([name(layout.manifest_path(CheckpointId(12))), "01.json", "2.json", *NOISE]) == [2, 12]


def test_the_name_of_a_checkpoint_file_has_the_number_of_its_checkpoint() -> None:
    paths = (
        layout.actions_path(CheckpointId(12), SinkName("a"), "0" * 64),
        layout.channel_file_path(CheckpointId(7), StageName("a"), "0" * 64),
    )
    assert [layout.checkpoint_of(name(path)) for path in paths] == [12, 7]
    for other in ("left.behind", "9", "9.old", f"9.a.{'0' * 16}", f"9.a.b.{'0' * 16}.actions", f"9.a.{'0' * 16}.actions.bak"):
        assert layout.checkpoint_of(other) is None, "retention deletes it"


def test_only_files_that_the_layout_names_are_of_a_start_or_of_a_round() -> None:
    start, begun, number = AttemptNumber(3), RoundNumber(3), InputName("a_b")
    starts = [layout.attempt_path(start), layout.begun_path(start), layout.owner_path(start, OwnerNumber(1))]
    starts += [
        layout.attempt_pin_path(start, number),
        layout.run_entry_path(start, RunId("r")),
        layout.ended_path(start, RunId("r")),
    ]
    assert {layout.attempt_of(name(path)) for path in starts} == {3}
    rounds = (layout.round_path(begun), layout.round_pin_path(begun, number))
    assert {layout.round_of(name(path)) for path in (*rounds, layout.round_tidied_path(begun, number))} == {3}
    others = ("3", "3.", "3.old", "3.savepoint", "3.json.bak", "3.a.b.json")
    assert {find(other) for find in (layout.attempt_of, layout.round_of) for other in others} == {None}


def test_one_listing_gives_the_losses_in_their_order_and_their_states() -> None:
    losses = [layout.loss_id(RoundNumber(number), n) for number, n in ((10, 1), (2, 10), (2, 9))]
    paths = [*map(layout.loss_path, losses), layout.loss_accepted_path(losses[0]), layout.loss_undone_path(losses[1])]
    found = layout.loss_names([*map(name, paths), *NOISE, "2.json", "2-1.lost.json"])
    assert list(found.recorded) == ["2-9", "2-10", "10-1"]
    assert (list(found.accepted), list(found.undone)) == (["10-1"], ["2-10"])
    assert [layout.position_of_loss(loss) for loss in losses] == [(10, 1), (2, 10), (2, 9)]


def test_only_directories_with_names_that_attempts_make_belong_to_attempts() -> None:
    made = str(new_work_directory_id())
    assert layout.work_directories([made, "mine", f"{made}.old", *NOISE]) == [made]


def test_names_of_requests_tries_and_logs_have_the_number_of_their_owner() -> None:
    assert layout.start_numbers([name(layout.request_path(start_request_id(AttemptNumber(7)))), "stop-7.json", *NOISE]) == [7]
    assert layout.history_tries([name(layout.history_path(CheckpointId(10), 2)), "9-1.json", *NOISE]) == [(9, 1), (10, 2)]
    tried = layout.StateTry(CheckpointId(3), AttemptNumber(2), 1)
    assert layout.state_try(name(layout.state_path(StageName("a"), *tried))) == tried
    assert layout.state_try("left") is None
    assert {layout.log_attempt(name(path(AttemptNumber(4)))) for path in (layout.log_path, layout.output_path)} == {4}


@pytest.mark.parametrize("package", ["spark_jobs", "airflow_provider"])
def test_no_other_module_contains_a_literal_path_of_a_home(package: str) -> None:
    spelling = {
        f"{path.relative_to(ROOT)}: {literal}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.parent.name != "home"
        for literal in literals(path)
        if SPELLED.match(literal)
    }
    assert spelling == set()
