"""Homes, caches, tables and savepoints are apart from the folders, patterns and tables that sources read."""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.checkpoint.savepoint import check_target, places_of
from spark_jobs.control.home import open_home
from spark_jobs.home.places import Kind, check_apart, check_sources, thing
from spark_jobs.home.source_places import source_places
from spark_jobs.protocol.errors import RejectedError
from spark_jobs.protocol.ids import InputName, RequestId, SinkName
from spark_jobs.protocol.known_sources import KnownDelta, KnownFiles, KnownKafka, KnownOther, KnownSource
from spark_jobs.storage.local import LocalFiles
from tests.support.object_store import object_store

ROWS, HOURLY = InputName("rows"), SinkName("hourly")


def reads(known: KnownSource) -> dict[InputName, tuple[KnownSource, ...]]:
    return {ROWS: (known,)}


def table(path: str) -> KnownDelta:
    return KnownDelta(path=path, table="id")


def folder(path: str) -> KnownFiles:
    return KnownFiles(path=path.replace("?", "%3F"))  # as Spark encodes it


@pytest.mark.parametrize("known", [folder, table])
@pytest.mark.parametrize(("place", "how"), [("rows", "is also"), ("rows/home", "is inside"), ("", "is around")])
def test_a_home_where_a_source_reads_is_refused(tmp_path: Path, known: Any, place: str, how: str) -> None:
    sources = source_places(reads(known(f"file://{tmp_path}/rows")))
    with pytest.raises(RejectedError, match=rf"The home \S+ {how} the source 'rows', file://{tmp_path}/rows\."):
        check_sources(LocalFiles(tmp_path / place), {}, sources)
    check_sources(LocalFiles(tmp_path / "rows too"), {}, sources)


@pytest.mark.parametrize("known", [folder, table])
@pytest.mark.parametrize(("place", "how"), [("rows/out", "is inside"), ("", "is around")])
def test_a_table_where_a_source_reads_is_refused(tmp_path: Path, known: Any, place: str, how: str) -> None:
    sources = source_places(reads(known(f"file://{tmp_path}/rows")))
    with pytest.raises(
        RejectedError, match=rf"The table of sink 'hourly', \S+ {how} the source 'rows', file://{tmp_path}/rows\."
    ):
        check_sources(None, {HOURLY: (tmp_path / place).as_uri()}, sources)
    check_sources(None, {HOURLY: (tmp_path / "out").as_uri()}, sources)


def test_only_a_delta_table_may_be_a_source_and_the_table_of_a_sink(tmp_path: Path) -> None:
    tables, path = {HOURLY: (tmp_path / "hourly").as_uri()}, f"file://{tmp_path}/hourly"
    check_sources(None, tables, source_places(reads(table(path))))
    with pytest.raises(RejectedError, match="is also the source 'rows'"):
        check_sources(None, tables, source_places(reads(folder(path))))


@pytest.mark.parametrize("known", [folder, table])
@pytest.mark.parametrize(("place", "how"), [("rows", "is also"), ("rows/mine", "is inside"), ("", "is around")])
def test_a_savepoint_where_a_source_reads_is_refused(tmp_path: Path, known: Any, place: str, how: str) -> None:
    others = places_of([], reads(known(f"file://{tmp_path}/in/rows")))
    home = LocalFiles(tmp_path / "home")
    with pytest.raises(RejectedError, match=rf"The savepoint \S+ {how} the source 'rows'"):
        check_target(home, LocalFiles(tmp_path / "in" / place), others, RequestId("savepoint-a"))
    check_target(home, LocalFiles(tmp_path / "mine"), others, RequestId("savepoint-a"))


def test_a_cache_where_a_source_reads_is_refused(tmp_path: Path) -> None:
    with object_store() as url:
        home = open_home(f"{url}/homes/mine", str(tmp_path / "work"))
        local = home.local("work")
        assert local is not None
        sources = source_places(reads(folder(local.parent.parent.as_uri())))
        with pytest.raises(RejectedError, match=r"The cache \S+ is inside the source 'rows'"):
            check_sources(home, {}, sources)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("known", [folder, table])
@pytest.mark.parametrize(("read", "place"), [("in", "in/home"), ("in/rows", "in"), ("in", "in")])
def test_a_home_in_a_store_where_a_source_reads_is_refused(scheme: str, known: Any, read: str, place: str) -> None:
    with object_store() as url:
        sources = reads(known(f"{url}/{read}".replace("s3:", f"{scheme}:")))
        with pytest.raises(RejectedError, match=rf"The home {url}/{place} is \w+ the source 'rows'"):
            check_sources(open_home(f"{url}/{place}"), {}, source_places(sources))
        check_sources(open_home(f"{url}/home"), {}, source_places(sources))


def test_a_home_in_a_store_that_a_pattern_of_a_source_matches_is_refused() -> None:
    with object_store() as url:
        sources = source_places(reads(folder(f"{url}/*/rows".replace("s3:", "s3a:"))))
        with pytest.raises(RejectedError, match=r"The home \S+ is inside the source 'rows', s3a://\S+/\*/rows\."):
            check_sources(open_home(f"{url}/lake/rows/home"), {}, sources)
        check_sources(open_home(f"{url}/lake/homes/rows"), {}, sources)


def test_sources_without_a_place_are_ignored() -> None:
    kafka, other = KnownKafka(cluster="c", topics={}), KnownOther(source="rate")
    assert source_places({ROWS: (kafka, other, folder("abfss://box@account/rows"))}) == []


NAMES = ("a", "ab", "b", "a1", "-")
PATTERNS = (
    *("*", "a*", "?", "[ab]", "[!a]", "a[0-9]", "*/a", "a/*", "a/?", "*/*", "*/b*", "a?", "*/[!a]/a", "a/a/a*"),
    *("[a-]", "a/*b/*"),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories with every name on three levels."""
    root = tmp_path_factory.mktemp("tree")
    for first in NAMES:
        for second in NAMES:
            for third in NAMES:
                (root / first / second / third).mkdir(parents=True)
    return root


def overlapping(places: Iterator[Path], pattern: str) -> set[Path]:
    others, found = source_places(reads(folder(pattern))), set()
    for place in places:
        try:
            check_apart(thing(Kind.HOME, LocalFiles(place)), others)
        except RejectedError:
            found.add(place)
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_overlaps_with_its_matches_with_paths_below_them_and_with_paths_above_a_wildcard(
    tree: Path, pattern: str
) -> None:
    """Python's own patterns are the answer."""
    matched = {Path(each) for each in glob.glob(f"{tree}/{pattern}")}
    assert matched
    wild = [any(sign in name for sign in "*?[") for name in pattern.split("/")]

    def finds_all_in(place: Path) -> bool:
        depth = len(place.relative_to(tree).parts)
        return wild[depth] or not any(wild[:depth])

    expected = {
        place
        for place in tree.rglob("*")
        for each in matched
        if place == each or each in place.parents or (place in each.parents and finds_all_in(place))
    }
    assert overlapping(tree.rglob("*"), f"file://{tree}/{pattern}") == expected


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{a,b}", {"a", "b"}),
        ("a{,b,1}", {"a", "ab", "a1"}),
        ("{a,{b,-}}", {"a", "b", "-"}),
        ("{ab/a,b/*}", {"ab", "b"}),
        (r"\a{\b,\1}", {"ab", "a1"}),
        (r"a\*", set()),
        ("[^a]", {"b", "-"}),
        ("%61b", {"ab"}),
        ("%7Ba,b%7D", {"a", "b"}),
        ("[b-a]", set(NAMES)),
    ],
)
def test_braces_escapes_and_encoded_signs_are_read_as_in_hadoop(tree: Path, pattern: str, names: set[str]) -> None:
    assert overlapping(tree.iterdir(), f"file://{tree}/{pattern}") == {tree / name for name in names}


def test_a_home_around_a_folder_with_a_name_that_no_place_may_have_is_refused(tmp_path: Path) -> None:
    sources = source_places(reads(folder(f"file://{tmp_path}/%5C%5Ba%5C%5D/rows")))
    with pytest.raises(RejectedError, match="is around the source"):
        check_sources(LocalFiles(tmp_path), {}, sources)
    check_sources(LocalFiles(tmp_path / "a"), {}, sources)


def test_overlaps_are_found_through_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for read, place in (("link", "real"), ("real", "link")):
        sources = source_places(reads(folder(f"file://{tmp_path}/{read}/*.json")))
        with pytest.raises(RejectedError, match="is also the source"):
            check_sources(LocalFiles(tmp_path / place / "home.json"), {}, sources)


@pytest.mark.parametrize(
    ("read", "around"),
    [
        ("*/*.csv", False),
        ("*/*.CSV.gz", False),
        ("*/*/a.csv", False),
        ("{o*/*.csv,in/*.csv}", False),
        ("*/*.{csv,txt}", False),
        ("*/*.parquet", True),
        ("*/*.{csv,json}", True),
        ("*/*/*.json", True),
        ("*/*.csv*", True),
        ("*/*.c?v", True),
        ("*/*csv", True),
        ("*/*/a", True),
        ("*/*.csv/*", True),
        ("out/in/*.csv", True),
    ],
)
def test_a_table_is_apart_from_a_pattern_that_finds_no_file_of_a_table(tmp_path: Path, read: str, around: bool) -> None:
    """A VACUUM of a table deletes all files in it, so its directory is named by no source."""
    sources, tables = source_places(reads(folder(f"file://{tmp_path}/{read}"))), {HOURLY: (tmp_path / "out").as_uri()}
    if around:
        with pytest.raises(RejectedError, match="is around the source"):
            check_sources(None, tables, sources)
    else:
        check_sources(None, tables, sources)
        with pytest.raises(RejectedError, match="The home .* is around the source"):
            check_sources(LocalFiles(tmp_path / "out"), {}, sources)


def test_a_directory_of_a_partition_may_have_any_ending(tmp_path: Path) -> None:
    sources, tables = source_places(reads(folder(f"file://{tmp_path}/*/*.csv"))), {HOURLY: (tmp_path / "out").as_uri()}
    with pytest.raises(RejectedError, match="is around the source"):
        check_sources(None, tables, sources, partitioned=[HOURLY])


@pytest.mark.parametrize("place", ["in/rows.csv", "in/rows.csv/out"])
def test_a_table_that_a_pattern_finds_is_refused_with_any_ending(tmp_path: Path, place: str) -> None:
    sources = source_places(reads(folder(f"file://{tmp_path}/*/*.csv")))
    with pytest.raises(RejectedError, match="is also|is inside"):
        check_sources(None, {HOURLY: (tmp_path / place).as_uri()}, sources)
