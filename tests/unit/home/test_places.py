"""The kind of a place is known by its markers. Some kinds may not be at the same place, or one inside the other."""

from collections import Counter
from pathlib import Path

import pytest

from spark_jobs.home.layout import REQUESTS, work_path
from spark_jobs.home.places import Kind, check_deletable, check_home, check_places, kinds_of, others_in
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import SinkName, new_work_directory_id
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import open_place
from tests.support.memory_files import MemoryFiles
from tests.support.object_store import BUCKET, Requests, object_store, object_store_of_two_owners

MARKS = {
    "pipeline.json": "home",
    "savepoint.json": "savepoint",
    "exporting.json": "savepoint",
    "_delta_log/0.json": "table",
}
marks = pytest.mark.parametrize(("marker", "what"), MARKS.items())
HOURLY, DAILY = SinkName("hourly"), SinkName("daily")


def begins(home: Files) -> None:
    check_home(home, begins=True)


def test_the_names_in_a_directory_decide_its_kind() -> None:
    assert kinds_of(["checkpoints", "notes.txt", "pipeline.json.bak"]) == set()
    assert {marker: kinds_of([marker.partition("/")[0], "x"]) for marker in MARKS} == {
        marker: {Kind(what)} for marker, what in MARKS.items()
    }


class TestAHomeThatBegins:
    """A home may not begin inside, above or in the place of another thing."""

    @marks
    def test_is_refused_inside_a_home_savepoint_or_table(self, tmp_path: Path, marker: str, what: str) -> None:
        LocalFiles(tmp_path / "theirs").create(marker, b"")
        for place in ("theirs/home", "theirs/checkpoints/9/deep"):
            with pytest.raises(RejectedError, match=rf"The home \S+/{place} is inside the {what} \S+/theirs\."):
                begins(LocalFiles(tmp_path / place))
        begins(LocalFiles(tmp_path / "theirs too"))

    @marks
    def test_is_refused_inside_a_home_savepoint_or_table_in_a_store(self, marker: str, what: str) -> None:
        with object_store() as url:
            open_place(f"{url}/homes/theirs").create(marker, b"")
            with pytest.raises(RejectedError, match=rf"is inside the {what} {url}/homes/theirs\."):
                begins(open_place(f"{url}/homes/theirs/deep/home"))
            begins(open_place(f"{url}/homes/theirs-too"))

    @marks
    def test_is_refused_at_the_place_of_a_home_savepoint_or_table(self, tmp_path: Path, marker: str, what: str) -> None:
        here, away = LocalFiles(tmp_path / "theirs"), MemoryFiles()
        for files in (here, away):
            files.create(marker, b"")
            if what == "home":
                begins(files)  # another start has begun this home
                continue
            with pytest.raises(RejectedError, match=rf"is also the {what}"):
                begins(files)

    def test_is_refused_in_a_directory_that_is_not_empty(self, tmp_path: Path) -> None:
        for inside in ("warehouse/hourly/_delta_log/0.json", "homes/pipeline.json", "channels/x"):
            files = LocalFiles(tmp_path / inside.partition("/")[0])
            files.create(inside, b"")
            with pytest.raises(
                RejectedError, match=rf"it has no pipeline\.json, and other things such as {files.names('')[0]}\."
            ):
                begins(files)

    @marks
    def test_is_refused_around_a_home_savepoint_or_table_in_a_directory_that_homes_have(
        self, tmp_path: Path, marker: str, what: str
    ) -> None:
        """A cleanup of the home would delete that thing."""
        LocalFiles(tmp_path / "home").create(f"checkpoints/9/{marker}", b"")
        with pytest.raises(RejectedError, match=rf"The home \S+/home is around the {what} \S+/home/checkpoints/9\."):
            begins(LocalFiles(tmp_path / "home"))

    def test_is_refused_at_the_root_of_the_file_system(self) -> None:
        with pytest.raises(RejectedError, match=r"The home file:/// cannot begin there"):
            begins(LocalFiles("/"))

    def test_is_refused_inside_another_home_through_a_link(self, tmp_path: Path) -> None:
        LocalFiles(tmp_path / "theirs").create("pipeline.json", b"")
        (tmp_path / "link").symlink_to(tmp_path / "theirs/state", target_is_directory=True)
        with pytest.raises(RejectedError, match="is inside the home"):
            begins(LocalFiles(tmp_path / "link/home"))

    def test_accepts_files_that_an_earlier_try_has_left(self, tmp_path: Path) -> None:
        files = LocalFiles(tmp_path / "home")
        for path in (f"{REQUESTS}/start-1.json", "logs/driver-1.out", "work/spark.log", f"probe-{'0' * 32}", ".snapshot/x"):
            files.create(path, b"")
        begins(files)

    def test_accepts_a_parent_directory_that_cannot_be_listed(self, tmp_path: Path) -> None:
        (tmp_path / "closed/homes").mkdir(parents=True)
        (tmp_path / "closed").chmod(0o311)
        try:
            begins(LocalFiles(tmp_path / "closed/homes/mine"))
        finally:
            (tmp_path / "closed").chmod(0o755)


class TestTheTableOfASink:
    """A sink's table is outside the home and outside other things."""

    @pytest.mark.parametrize(
        ("home", "table", "how"), [("a", "a", "is also"), ("a/home", "a", "is inside"), ("a", "a/channels/x", "is around")]
    )
    @pytest.mark.parametrize("begun", [True, False])
    def test_may_not_overlap_with_the_home_even_if_neither_exists(
        self, tmp_path: Path, home: str, table: str, how: str, begun: bool
    ) -> None:
        with pytest.raises(RejectedError, match=rf"The home \S+/{home} {how} the table of sink 'hourly', \S+/{table}\."):
            check_places(LocalFiles(tmp_path / home), {HOURLY: (tmp_path / table).as_uri()}, begins=not begun)
        assert list(tmp_path.iterdir()) == []

    @marks
    def test_is_refused_inside_a_home_savepoint_or_table(self, tmp_path: Path, marker: str, what: str) -> None:
        LocalFiles(tmp_path / "theirs").create(marker, b"")
        with pytest.raises(RejectedError, match=rf"The table of sink 'hourly', \S+ is inside the {what} \S+/theirs\."):
            check_places(None, {HOURLY: (tmp_path / "theirs/state/x").as_uri()}, begins=False)

    @marks
    def test_is_refused_inside_a_home_savepoint_or_table_in_a_store(self, marker: str, what: str) -> None:
        with object_store() as url:
            open_place(f"{url}/theirs").create(marker, b"")
            with pytest.raises(RejectedError, match=rf"The table of sink 'hourly', \S+ is inside the {what} {url}/theirs\."):
                check_places(None, {DAILY: f"{url}/apart", HOURLY: f"{url}/theirs/state/x"}, begins=False)

    def test_may_be_below_a_place_of_which_we_may_read_no_object(self) -> None:
        with object_store_of_two_owners("lake", "others", "missing", below="team/"):
            check_places(None, {HOURLY: "s3://lake/team/tables/x"}, begins=False)

    def test_is_looked_at_in_a_store_without_listing_what_is_beside_it(self) -> None:
        requests = Requests()
        with object_store(requests=requests) as url:
            check_places(None, {HOURLY: f"{url}/lake/hourly", DAILY: f"{url}/lake/daily"}, begins=False)
        assert Counter(each.method for each in requests.served[-16:]) == {"HEAD": 12, "LIST": 4}
        looked_at = {each.path.rpartition("/")[0] for each in requests.served[-16:] if each.method == "HEAD"}
        assert looked_at == {f"/{BUCKET}{place}" for place in ("", "/lake", "/lake/hourly", "/lake/daily")}

    @marks
    def test_may_not_be_at_the_place_of_a_home_or_savepoint(self, tmp_path: Path, marker: str, what: str) -> None:
        LocalFiles(tmp_path / "theirs").create(marker, b"")
        if what == "table":
            check_places(None, {HOURLY: (tmp_path / "theirs").as_uri()}, begins=False)
            return
        with pytest.raises(RejectedError, match=rf"The table of sink 'hourly', \S+ is also the {what} \S+/theirs\."):
            check_places(None, {HOURLY: (tmp_path / "theirs").as_uri()}, begins=False)


def test_no_savepoint_is_deleted_in_a_directory_that_is_also_a_home_or_table(tmp_path: Path) -> None:
    check_deletable(Kind.SAVEPOINT, LocalFiles(tmp_path), ["savepoint.json", "exporting.json", "notes.txt"], ["state"])
    for marker, what in MARKS.items():
        if what != "savepoint":
            with pytest.raises(RejectedError, match=rf"a {what} is in the same directory"):
                check_deletable(Kind.SAVEPOINT, LocalFiles(tmp_path), ["savepoint.json", marker.partition("/")[0]], ["state"])


@marks
def test_no_directory_is_deleted_with_a_home_savepoint_or_table_below_it(marker: str, what: str) -> None:
    files = MemoryFiles()
    files.create(f"notes/{marker}", b"")
    files.create("state/hourly/1-1-1/file", b"")
    check_deletable(Kind.SAVEPOINT, files, files.names(""), ["state"])
    files.create(f"state/hourly/theirs/deep/{marker}", b"")
    with pytest.raises(RejectedError, match=rf"the {what} \S+/state/hourly/theirs/deep is inside it"):
        check_deletable(Kind.SAVEPOINT, files, files.names(""), ["state"])


def test_the_runtimes_own_tables_do_not_count_as_foreign_tables() -> None:
    work = work_path(new_work_directory_id())
    own = ("channels/i/hourly", "tombstones/i/hourly", "tombstones/hourly", "staged/hourly", f"{work}/stages/hourly/log")
    assert others_in(MemoryFiles(), [f"{table}/_delta_log/0.json" for table in own]) == []
    theirs = ("channels/i/hourly/deep", "state/hourly/1-1-1", f"{work}/stages/hourly", "work/table", "checkpoints/9")
    files = MemoryFiles()
    found = others_in(files, [f"{table}/_delta_log/0.json" for table in theirs])
    assert [(each.what, each.url) for each in found] == [("table", f"{files.url}/{table}") for table in theirs]
