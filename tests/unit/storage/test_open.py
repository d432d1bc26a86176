"""The locations that a user may give for a home, and those that are refused."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from spark_jobs.protocol.errors import AccessDeniedError, InvalidParameterError, MissingRequirementError, StorageError
from spark_jobs.storage.files import Files
from spark_jobs.storage.local import LocalFiles
from spark_jobs.storage.open import check_create_if_absent, check_writable, open_files, open_place
from tests.support.systems import FaultSystem


@pytest.mark.parametrize(
    "url",
    [
        "/data/my flights",
        "file:/data/my flights",
        "file:///data/my%20flights",
        "file://localhost/data/my flights",
        "FILE:///data/my flights/",
    ],
)
def test_a_path_and_each_form_of_a_file_url_open_the_same_directory(url: str) -> None:
    assert open_files(url).url == "file:///data/my flights"


def test_a_relative_path_and_a_home_directory_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert open_files("flights").url == f"file://{tmp_path}/flights"
    assert open_files("./a/../flights").url == f"file://{tmp_path}/flights"
    assert open_files("~/flights").url == "file:///home/somebody/flights"


@given(st.text(st.characters(codec="utf-8", exclude_characters="%#?*[]{}\\:/", exclude_categories=("C", "Z")), min_size=1))
def test_the_url_of_any_accepted_path_opens_the_same_directory(name: str) -> None:
    try:
        url = LocalFiles(f"/data/{name}").url
    except InvalidParameterError:  # an invisible character
        reject()
    assert open_files(url).url == url


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("views ", "begins or ends with a blank"),
        (" views", "begins or ends with a blank"),
        ("\t", "read differently"),
        ("vie\u200bws", r"the invisible character U\+200B"),
        ("views\ufeff", r"the invisible character U\+FEFF"),
        ("views\u00a0", r"the invisible character U\+00A0"),
        ("\u202eswiev", r"the invisible character U\+202E"),
        ("views\ufe0f", r"the invisible character U\+FE0F"),
        ("views\u3164", r"the invisible character U\+3164"),
        ("None", "the name 'None', which a template writes"),
    ],
)
@pytest.mark.parametrize("place", ["/data/{}", "/data/{}/home", "s3://bucket/{}/home", "hdfs://namenode:8020/data/{}"])
def test_an_ambiguous_or_mistyped_name_is_refused(place: str, name: str, why: str) -> None:
    with pytest.raises(InvalidParameterError, match=why) as refused:
        open_place(place.format(name))
    assert refused.value.failed.isascii()


@pytest.mark.parametrize("name", ["my views", "Nonesuch", "größe", "データ", "-", "a.b"])
def test_a_name_in_any_language_is_accepted(name: str) -> None:
    assert open_place(f"/data/{name}/home").url == f"file:///data/{name}/home"


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "abfss", "wasbs", "oss", "hdfs", "dbfs", "http", "memory", "C"])
def test_a_directory_with_another_scheme_is_refused_by_name_with_the_supported_places(scheme: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        open_files(f"{scheme}://bucket/home")
    assert f"{scheme}: is not supported" in refused.value.failed
    assert "POSIX file system" in refused.value.failed
    assert "/data/pipelines/flights" in refused.value.remedy
    assert refused.value.evidence == {"url": f"{scheme}://bucket/home"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "file:",
        "file:relative",
        "file://host/data",
        "file://[/data",
        "file:///a%23b",
        "file:///a#b",
        "file:///a?b",
        "file:///50%25",
        "file:///a%FFb",
        "/a%20b",
        "file:////host/share",
    ],
)
def test_a_url_that_does_not_clearly_name_a_directory_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameterError):
        open_files(url)


class _Overwrites(LocalFiles):
    """A store whose second create wins."""

    def create(self, path: str, data: bytes) -> None:
        self.replace(path, data)


class _Pretends(LocalFiles):
    """A store whose second create does nothing and reports success."""

    def create(self, path: str, data: bytes) -> None:
        if path not in self.names(""):
            super().create(path, data)


class _TellsTooLate(LocalFiles):
    """A store that reports a conflict to the second writer after it has overwritten the first."""

    def create(self, path: str, data: bytes) -> None:
        taken = path in self.names("")
        self.replace(path, data)
        if taken:
            super().create(path, b"neither")


class _ListsLate(LocalFiles):
    """A store whose listing does not show new files yet."""

    def names(self, directory: str) -> list[str]:
        return []


class _ListsDeleted(LocalFiles):
    """A store whose listing still shows deleted files."""

    _seen: frozenset[str] = frozenset()

    def names(self, directory: str) -> list[str]:
        self._seen = self._seen.union(super().names(directory))
        return sorted(self._seen)


@pytest.mark.parametrize("store", [_Overwrites, _Pretends, _TellsTooLate, _ListsLate, _ListsDeleted])
def test_a_store_that_does_not_keep_the_first_of_two_files_is_refused_and_left_clean(
    tmp_path: Path, store: Callable[[Path], Files]
) -> None:
    with pytest.raises(MissingRequirementError, match="does not keep the first"):
        check_create_if_absent(store(tmp_path / "home"))
    assert LocalFiles(tmp_path / "home").names("") == []


def test_the_error_for_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        check_create_if_absent(LocalFiles(tmp_path / "home", FaultSystem(0, lasting=True)))


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "s3a://bucket/a/b", "S3://bucket/a/b/"])
def test_a_place_may_be_in_an_object_store(url: str) -> None:
    assert open_place(url).url == "s3://bucket/a/b"
    assert open_place(url).below("c").url == "s3://bucket/a/b/c"


def test_a_place_may_be_in_google_cloud() -> None:
    place = open_place("gs://my_lake/a/b/")
    assert place.url == "gs://my_lake/a/b"
    assert place.below("c").url == "gs://my_lake/a/b/c"


@pytest.mark.parametrize("path", ["a.", "a./b"])
def test_a_name_in_azure_that_ends_with_a_dot_is_refused_because_spark_cannot_write_there(path: str) -> None:
    with pytest.raises(InvalidParameterError, match="ends with a dot"):
        open_place(f"abfss://lake@flights.dfs.core.windows.net/{path}")
    assert open_place(f"s3://bucket/{path}").url == f"s3://bucket/{path}"


@pytest.mark.parametrize("scheme", ["abfss", "abfs", "ABFSS"])
def test_a_place_may_be_in_azure(scheme: str) -> None:
    place = open_place(f"{scheme}://lake@Flights.dfs.core.windows.net/a/b/")
    assert place.url == "abfss://lake@flights.dfs.core.windows.net/a/b"
    assert place.below("c").url == "abfss://lake@flights.dfs.core.windows.net/a/b/c"


@pytest.mark.parametrize(
    "url",
    [
        "abfss://lake",
        "abfss://lake@flights/a",
        "abfss://lake:hidden@flights.dfs.core.windows.net/a",
        "abfss://lake@flights.dfs.core.windows.net/a?sig=hidden",
        "abfss://lake@flights.blob.core.windows.net/a",
        "abfss://lake@flights.dfs.core.windows.net//a",
        "abfss://lake@flights.dfs.core.windows.net/a/../b",
    ],
)
def test_an_invalid_place_in_azure_is_refused_with_the_valid_form(url: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"abfss://container@account\.dfs\.core\.windows\.net/directory") as refused:
        open_place(url)
    assert "hidden" not in f"{refused.value} {refused.value.evidence}"


def test_a_place_may_be_a_whole_bucket() -> None:
    assert open_place("s3a://bucket/").url == "s3://bucket"
    assert open_place("s3://bucket").below("a").url == "s3://bucket/a"


@pytest.mark.parametrize("url", ["/data/my flights", "file:///data/my%20flights"])
def test_a_place_may_be_a_directory(url: str) -> None:
    assert open_place(url).url == "file:///data/my flights"


@pytest.mark.parametrize(
    "url",
    [
        *("s3:", "s3://", "s3:/bucket/a", "s3://bucket//a", "s3://bucket/a//b", "s3://b_d/a"),
        *(
            "s3://bucket/a/../b",
            "s3://bucket/.",
            "s3://bucket/a?versionId=1",
            "s3://bucket/a%2Fb",
            "s3://bucket/a#b",
            "gs://b/../a",
        ),
    ],
)
def test_another_place_in_an_object_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        open_place(url)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("s3:/lake/flights", "s3://lake/homes/flights"),
        ("s3a://b_d/a", "s3://lake/homes/flights"),
        ("gs://b/../a", "gs://lake/homes/flights"),
        ("abfs://lake", "abfss://lake@account.dfs.core.windows.net/homes/flights"),
        ("hdfs:/homes", "hdfs://namenode:8020/homes/flights"),
        ("file://host/homes", "file:///data/pipelines/flights"),
    ],
)
def test_the_remedy_for_an_invalid_url_has_a_place_with_its_scheme(url: str, example: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        open_place(url)
    assert example in refused.value.remedy


def test_a_store_is_refused_where_only_a_directory_is_possible_and_not_named_as_supported() -> None:
    with pytest.raises(InvalidParameterError) as refused:
        open_files("s3:/bucket/schemas")
    assert "This place has to be a directory" in refused.value.failed
    assert "stores" not in refused.value.failed


def test_the_refusal_of_an_unknown_store_names_the_known_ones() -> None:
    with pytest.raises(InvalidParameterError, match="in stores: s3:, abfss:, gs: and hdfs:") as refused:
        open_place("wasbs://lake@account/homes")
    assert refused.value.remedy.endswith("Or give a place in a store, such as s3://lake/homes/flights.")


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidParameterError) as refused:
        open_place("s3://AKIDTESTS:hunter-twelve@bucket/a")
    assert "hunter" not in f"{refused.value}{refused.value.evidence}"


@pytest.mark.parametrize(
    ("url", "module", "package", "extra"),
    [
        ("s3://bucket/a", "object_store", "obstore", "[s3]"),
        ("abfss://lake@flights.dfs.core.windows.net/a", "object_store", "obstore", "[azure]"),
        ("gs://bucket/a", "object_store", "obstore", "[gcs]"),
        ("hdfs://name-node:8020/a", "hdfs", "hdfs-native", "[hdfs]"),
    ],
)
def test_a_store_without_its_python_package_is_refused_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, package: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"spark_jobs.storage.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(MissingRequirementError, match=f"needs the package {package}, which is not installed") as refused:
        open_place(url)
    assert extra in refused.value.remedy


def test_a_place_in_hdfs_is_opened_without_a_request() -> None:
    assert open_place("hdfs://name-node:8020/homes/flights/").url == "hdfs://name-node:8020/homes/flights"
    assert open_place("HDFS://nameservice1/homes").url == "hdfs://nameservice1/homes"


@pytest.mark.parametrize(
    "url",
    [
        "hdfs:/homes",
        "hdfs://name-node",
        "hdfs://name-node/",
        "hdfs://user@name-node/a",
        "hdfs://name-node/a/../b",
        "hdfs://a/b?c",
    ],
)
def test_an_invalid_place_in_hdfs_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameterError):
        open_place(url)


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hid/den@bucket/x", "s3a://AKIA:hidden@bucket/x", "s3n://AKIA:hid/den@bucket/x", "gs://a:hidden@b"]
)
@pytest.mark.parametrize("open_", [open_files, open_place])
def test_credentials_in_a_url_are_not_shown(open_: Callable[[str], Files], url: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        open_(url)
    assert "hid" not in f"{refused.value} {refused.value.evidence}"


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(LocalFiles(tmp_path / "new" / "home"))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(AccessDeniedError, match=f"no right to write into {tmp_path}"):
        check_writable(LocalFiles(tmp_path / "new" / "home"))


def test_a_file_cannot_be_a_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/home"):
        with pytest.raises(InvalidParameterError, match="is a file"):
            check_create_if_absent(LocalFiles(tmp_path / path))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
