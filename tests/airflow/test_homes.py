"""The allow-list of home roots."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.homes import check_place, check_roots, open_allowed_home, open_savepoint
from spark_jobs.control.channel import Channel
from spark_jobs.control.home import cache_name
from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, RejectedError, StorageError
from spark_jobs.protocol.ids import PipelineName
from spark_jobs.storage.files import Files, local_path
from spark_jobs.storage.open import open_place
from tests.support.object_store import object_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes-of-others").mkdir()
    return tmp_path / "homes"


def test_a_home_inside_the_root_is_opened(root: Path) -> None:
    assert open_allowed_home(f"file://{root}/flights", [str(root)]).url == f"file://{root}/flights"


def test_a_relative_home_starts_at_the_first_root(root: Path, tmp_path: Path) -> None:
    assert open_allowed_home("team/flights", [str(root), str(tmp_path / "other")]).url == f"file://{root}/team/flights"


def test_a_home_inside_any_of_several_roots_is_opened(root: Path, tmp_path: Path) -> None:
    assert open_allowed_home(str(root / "flights"), [f"file://{tmp_path}/other", str(root)]).url == f"file://{root}/flights"


def test_links_and_escapes_are_resolved_before_a_home_is_opened(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    assert open_allowed_home(f"file://{root}/x/../%6cink/flights", [str(root)]).url == f"file://{root}/real/flights"


@pytest.mark.parametrize(
    "home",
    [
        "{root}-of-others/flights",
        "{root}",
        "{root}/",
        "{root}/x/..",
        "/",
        "~/flights",
        "{root}/../homes-of-others/x",
        "../homes-of-others/x",
        "x/../../homes-of-others/x",
        "file://{root}/../homes-of-others/x",
        "file://{root}/%2e%2e/homes-of-others/x",
        "file://{root}/%2E%2e%2fhomes-of-others/x",
        "file:{root}/../x",
        "{root}/link/x",
        "link/x",
        "file://{root}/l%69nk/x",
        "file://localhost{root}/../x",
        "FILE:{root}/%2e%2e/x",
        "{root}/link/../../homes-of-others/x",
        "./../homes-of-others/x",
        "~root/flights",
        "s3://bucket/flights",
        "s3://bucket{root}/flights",
    ],
)
def test_no_home_outside_the_roots_is_opened(root: Path, home: str) -> None:
    (root / "link").symlink_to("../homes-of-others")
    with pytest.raises(AccessDeniedError) as caught:
        open_allowed_home(home.format(root=root), [str(root)])
    assert caught.value.remedy


@pytest.mark.parametrize(
    "home",
    [
        "hdfs:{root}/flights",
        "file://host{root}/flights",
        "FILE://evil/{root}",
        "{root}/%2e%2e/x",
        "{root}/\0",
        "{root}/a\nb",
        "",
        "  ",
        "file://{root}/%252e%252e/x",
        "file://{root}/%25252e/x",
        "file://{root}/x%00",
        "file://{root}/x%0a",
        "{root}/x\x7f",
        "{root}\\..\\x",
        "None",
        "{root}/None/x",
        "{root}/x ",
        "{root}/ x/y",
        "{root}/x\N{ZERO WIDTH SPACE}",
        "file:////etc/x",
        "file://{root}?x",
        "file://user:word@localhost{root}/x",
        "http://169.254.169.254/x",
        "abfss://container@account/x",
        "C:/x",
        "x:y",
        "é:{root}/x",
        "::/x",
    ],
)
def test_a_home_that_is_no_plain_path_is_refused(root: Path, home: str) -> None:
    with pytest.raises(RejectedError):
        open_allowed_home(home.format(root=root), [str(root)])


@pytest.mark.parametrize(("opens", "what"), [(open_allowed_home, "home"), (open_savepoint, "savepoint")])
@pytest.mark.parametrize("given", [None, " "])
def test_a_template_that_renders_to_nothing_is_refused_by_name(
    root: Path, opens: Callable[..., Files], what: str, given: str | None
) -> None:
    with pytest.raises(InvalidParameterError, match=f"The {what} is {given!r}"):
        opens(given, [str(root)])


STORES = ["s3://lake/homes/", "s3://lake/homes/team", "/data/homes"]


@pytest.mark.parametrize(
    ("home", "url"),
    [
        ("flights", "s3://lake/homes/flights"),
        ("s3a://lake/homes/daily/flights/", "s3://lake/homes/daily/flights"),
        ("s3://lake/homes/team/flights", "s3://lake/homes/team/flights"),
    ],
)
def test_the_cache_of_a_home_in_a_store_is_below_the_work_root(home: str, url: str) -> None:
    opened = open_allowed_home(home, STORES, "/mnt/work")
    assert opened.url == url
    assert local_path(opened, "work") == Path("/mnt/work") / cache_name(url) / "work"


def test_a_driver_on_this_host_needs_the_work_root(lake: str, tmp_path: Path) -> None:
    home = open_allowed_home("flights", [lake], str(tmp_path / "not mounted"))
    check_place(home, [lake])
    with pytest.raises(StorageError, match="The work root .* does not exist"):
        check_place(home, [lake], str(tmp_path / "not mounted"))


@pytest.mark.parametrize(
    "home",
    [
        "s3://lake/homes",
        "s3://lake/homes/",
        "s3://lake/homes-of-others/x",
        "s3://other/homes/x",
        "s3://lake/x",
        "s3://lake",
        "/data/elsewhere",
        "file:///data/homes",
    ],
)
def test_no_home_outside_the_roots_in_stores_is_opened(home: str) -> None:
    with pytest.raises(AccessDeniedError):
        open_allowed_home(home, STORES)


@pytest.mark.parametrize(
    "home",
    ["../x", "a/../../x", "s3://lake/homes/../x", "s3://lake/homes//x", "s3://lake/homes/%2e%2e/x", "s3://user:word@lake/x"],
)
def test_no_part_of_a_url_leads_out_of_a_store(home: str) -> None:
    with pytest.raises(RejectedError) as refused:
        open_allowed_home(home, STORES)
    assert "word" not in str(refused.value)


@pytest.fixture
def lake() -> Iterator[str]:
    with object_store() as url:
        yield f"{url}/homes"


def test_a_home_is_not_made_inside_another_one_in_a_store(lake: str) -> None:
    Channel(open_allowed_home("team", [lake])).claim(PipelineName("flights"))
    check_place(open_allowed_home("other/flights", [lake]), [lake])
    with pytest.raises(RejectedError, match="is inside the home .*team"):
        check_place(open_allowed_home("team/deep/flights", [lake]), [lake])


def test_the_test_of_a_root_in_a_store_leaves_it_as_it_was(lake: str) -> None:
    assert check_roots([lake], []).startswith(f"{lake} can hold homes. ")
    assert open_place(lake).names("") == []
    with pytest.raises(StorageError):
        check_roots(["s3://no-such-bucket/homes"], [])


@pytest.mark.parametrize(("opens", "what"), [(open_allowed_home, "home"), (open_savepoint, "savepoint")])
def test_without_roots_no_place_is_allowed(root: Path, opens: Callable[..., Files], what: str) -> None:
    with pytest.raises(AccessDeniedError, match=f"no {what} roots"):
        opens(str(root / "flights"), [])


def test_a_savepoint_is_inside_one_of_its_roots_and_a_relative_one_starts_at_the_first(root: Path) -> None:
    roots = ["s3a://bucket/savepoints/", str(root)]
    assert open_savepoint("daily/a", roots).url == "s3://bucket/savepoints/daily/a"
    assert open_savepoint("s3a://bucket/savepoints/a", roots).url == "s3://bucket/savepoints/a"
    assert open_savepoint(f"{root}/views/savepoints/a", roots).url == f"file://{root}/views/savepoints/a"
    assert open_savepoint("s3://other/a", ["s3://other"]).url == "s3://other/a"


@pytest.mark.parametrize(
    "savepoint",
    [
        "s3://bucket/savepoints",
        "s3://bucket/savepoints-of-others/a",
        "s3://bucket/other",
        "s3://bucket-of-others/savepoints/a",
        "s3://bucket/savepoints/../other",
        "s3://bucket/savepoints/%2e%2e/other",
        "s3://bucket//savepoints/a",
        "s3://user:word@bucket/savepoints/a",
        "../a",
        "x/../../a",
        "gs://bucket/savepoints/a",
        "{root}-of-others/a",
        "{root}/link/a",
        "",
    ],
)
def test_no_savepoint_outside_the_roots_is_opened(root: Path, savepoint: str) -> None:
    (root / "link").symlink_to("../homes-of-others")
    with pytest.raises((RejectedError, AccessDeniedError)) as caught:
        open_savepoint(savepoint.format(root=root), ["s3://bucket/savepoints", str(root)])
    assert caught.value.remedy


def test_a_link_in_the_root_itself_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert open_allowed_home("flights", [str(tmp_path / "alias")]).url == f"file://{root}/flights"


@pytest.mark.parametrize(
    "name",
    [
        "..\N{FULLWIDTH SOLIDUS}..\N{FULLWIDTH SOLIDUS}x",
        "..\N{DIVISION SLASH}x",
        "..\N{FRACTION SLASH}x",
        "\N{TWO DOT LEADER}",
        "\N{ONE DOT LEADER}\N{ONE DOT LEADER}",
        "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}",
        "\N{FULLWIDTH TILDE}",
    ],
)
def test_a_name_that_only_looks_like_a_way_out_of_the_root_is_allowed(root: Path, name: str) -> None:
    place = Path(open_allowed_home(name, [str(root)]).url.removeprefix("file://"))
    assert (place.parent, place.name) == (root, name)


def test_a_root_that_is_a_url_confines_homes_like_a_path(root: Path) -> None:
    assert open_allowed_home("flights", [f"file://{root}"]).url == f"file://{root}/flights"
    with pytest.raises(AccessDeniedError):
        open_allowed_home("%2e%2e/homes-of-others/x", [f"file://{root}"])


def test_a_very_long_home_is_refused_before_anything_is_written(root: Path) -> None:
    with pytest.raises(RejectedError):
        open_allowed_home("x/" * 5_000, [str(root)]).create("pipeline.json", b"{}")
    with pytest.raises(RejectedError):
        open_allowed_home("x" * 300, [str(root)]).create("pipeline.json", b"{}")
    assert list(root.iterdir()) == []


def test_a_link_that_is_changed_after_the_check_leads_to_no_other_home(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    files = open_allowed_home("link", [str(root)])
    (root / "link").unlink()
    (root / "link").symlink_to("../homes-of-others")
    files.create("pipeline.json", b"{}")
    assert (root / "real/pipeline.json").exists()
    assert list((root.parent / "homes-of-others").iterdir()) == []


@given(parts=st.lists(st.sampled_from(["..", ".", "a", "%2e%2e", "%2E.", "", "link", "up", "%2f", "file:"]), max_size=8))
def test_no_spelling_of_a_home_leads_out_of_the_root(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "spelled"
    (root / "a").mkdir(parents=True, exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to("a")
        (root / "a" / "up").symlink_to("../..")
    for prefix in ("", f"{root}/", f"file://{root}/"):
        try:
            opened = open_allowed_home(prefix + "/".join(parts), [str(root)])
        except (AccessDeniedError, RejectedError):
            continue
        assert Path(opened.url.removeprefix("file://")).resolve().is_relative_to(root)
