"""Every kind of document, cut, altered, swapped, and of a newer version.

A damaged document is never used, and always named in the error.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.protocol.codec import Document, Part, canonical, decode, encode, sha256
from spark_jobs.protocol.documents import PipelineDocument
from spark_jobs.protocol.errors import CorruptDocumentError, UnsupportedFormatError
from spark_jobs.protocol.ids import PipelineName, PipelineUuid
from tests.support.documents import KINDS, SAMPLES, any_document, kinds_in_the_product

PATH = "file:///data/home/a document.json"

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)


def _undetected(kind: type[Document], altered: Iterator[bytes]) -> list[bytes]:
    """Returns the altered documents that were accepted, or refused without the name of the file."""
    passed = []
    for data in altered:
        try:
            decode(kind, data, PATH)
        except CorruptDocumentError as error:
            if error.evidence["path"] == PATH and PATH in error.failed:
                continue
        passed.append(data)
    return passed


def _sealed(envelope: dict[str, Any]) -> bytes:
    """Returns the envelope with its correct checksum."""
    unsealed = {name: value for name, value in envelope.items() if name != "checksum"}
    return canonical(unsealed | {"checksum": sha256(canonical(unsealed))}) + b"\n"


def _envelope(document: Document) -> dict[str, Any]:
    envelope: dict[str, Any] = json.loads(encode(document))
    return envelope


def test_every_kind_of_document_is_tested_here() -> None:
    assert kinds_in_the_product() == set(KINDS)
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


@every_sample
def test_a_document_is_read_as_it_was_written(sample: Document) -> None:
    assert decode(type(sample), encode(sample), PATH) == sample
    assert _sealed(_envelope(sample)) == encode(sample)


@every_sample
def test_a_document_cut_at_any_byte_is_corrupt(sample: Document) -> None:
    data = encode(sample)
    assert _undetected(type(sample), (data[:length] for length in range(len(data)))) == []


@every_sample
@pytest.mark.slow
def test_a_document_with_any_bit_flipped_is_corrupt(sample: Document) -> None:
    data = encode(sample)
    flipped = (
        data[:index] + bytes([data[index] ^ (1 << bit)]) + data[index + 1 :] for index in range(len(data)) for bit in range(8)
    )
    assert _undetected(type(sample), flipped) == []


@every_sample
def test_a_document_with_any_four_bytes_zeroed_is_corrupt(sample: Document) -> None:
    data = encode(sample)
    assert _undetected(type(sample), (data[:index] + bytes(4) + data[index + 4 :] for index in range(len(data) - 3))) == []


@every_sample
def test_a_document_of_zeros_or_with_its_tail_zeroed_is_corrupt(sample: Document) -> None:
    data = encode(sample)
    assert _undetected(type(sample), (data[:index] + bytes(len(data) - index) for index in range(len(data)))) == []


@every_sample
def test_a_document_with_extra_bytes_before_after_or_within_is_corrupt(sample: Document) -> None:
    data = encode(sample)
    more = [data + b"\n", data + b"{}", data + bytes(8), data + data, b" " + data, b"\xef\xbb\xbf" + data, data[:-1] + b" \n"]
    inserted = [data[:index] + b" " + data[index:] for index in range(len(data))]
    assert _undetected(type(sample), iter(more + inserted)) == []


@given(document=any_document(), changes=st.lists(st.tuples(st.integers(0, 2**20), st.binary(max_size=8)), min_size=1, max_size=3))
def test_a_document_with_any_bytes_overwritten_is_the_same_or_corrupt(
    document: Document, changes: list[tuple[int, bytes]]
) -> None:
    data = altered = encode(document)
    for position, new in changes:
        start = position % len(data)
        altered = altered[:start] + new + altered[start + len(new) :]
    assert altered == data or _undetected(type(document), iter([altered])) == []


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"{}\n", b"[]\n", b"null\n", b"1\n", b'"text"\n', b"\xff\xfe", b"[" * 100_000, b"NaN\n"]
)
def test_a_file_that_never_was_a_document_is_corrupt(data: bytes) -> None:
    for kind in KINDS:
        assert _undetected(kind, iter([data])) == []


@every_sample
def test_a_document_without_one_of_its_fields_is_corrupt(sample: Document) -> None:
    envelope = _envelope(sample)
    assert _undetected(type(sample), (_sealed({key: envelope[key] for key in envelope if key != name}) for name in envelope)) in (
        [],
        [encode(sample)],  # sealing restores the checksum
    )
    required = [name for name, field in type(sample).model_fields.items() if field.is_required()]
    bodies = [{key: envelope["body"][key] for key in envelope["body"] if key != name} for name in required]
    assert required
    assert _undetected(type(sample), (_sealed(envelope | {"body": body}) for body in bodies)) == []


@every_sample
def test_a_sealed_document_with_a_field_of_another_type_is_corrupt(sample: Document) -> None:
    envelope = _envelope(sample)
    required = [name for name, field in type(sample).model_fields.items() if field.is_required()]
    bodies = [envelope["body"] | {name: [["a list"]]} for name in required]
    assert _undetected(type(sample), (_sealed(envelope | {"body": body}) for body in bodies)) == []


@every_sample
def test_a_document_of_another_kind_is_corrupt(sample: Document) -> None:
    for other in KINDS:
        if other is not type(sample):
            assert _undetected(other, iter([encode(sample), _sealed(_envelope(sample) | {"kind": "another"})])) == []


def test_the_error_for_a_corrupt_document_says_what_was_expected_what_was_found_and_what_to_do() -> None:
    with pytest.raises(CorruptDocumentError) as corrupt:
        decode(KINDS[0], encode(SAMPLES[1]), PATH)
    assert PATH in corrupt.value.failed
    assert corrupt.value.evidence == {"path": PATH, "expected": "kind pipeline", "found": "kind start_request"}
    assert corrupt.value.safe
    assert corrupt.value.remedy


@every_sample
def test_a_newer_version_is_refused_and_the_error_says_to_upgrade(sample: Document) -> None:
    newer = sample.format_version + 1
    with pytest.raises(UnsupportedFormatError, match="Upgrade this package") as refused:
        decode(type(sample), _sealed(_envelope(sample) | {"format_version": newer}), PATH)
    assert refused.value.evidence == {"path": PATH, "expected": sample.format_version, "found": newer}


def _with_later_fields(value: Any) -> Any:
    """Returns ``value`` as a later release might write it, with one more field in each part."""
    if isinstance(value, Part):
        known = {name: _with_later_fields(getattr(value, name)) for name in type(value).model_fields}
        return value.model_copy(update=known | {"later": [{"any": None}, 1.5]})
    if isinstance(value, dict):
        return {name: _with_later_fields(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_with_later_fields(inner) for inner in value)
    return value


def _count_parts(value: Any) -> int:
    if isinstance(value, Part):
        return 1 + sum(_count_parts(getattr(value, name)) for name in type(value).model_fields)
    if isinstance(value, dict | tuple):
        return sum(_count_parts(inner) for inner in (value.values() if isinstance(value, dict) else value))
    return 0


@every_sample
def test_fields_that_a_later_version_added_are_kept_when_the_document_is_written_again(sample: Document) -> None:
    data = encode(_with_later_fields(sample))
    assert data.count(b'"later":[{"any":null},1.5]') == _count_parts(sample)
    read = decode(type(sample), data, PATH)
    assert encode(read) == data
    field, value = next((name, getattr(read, name)) for name in type(sample).model_fields if name != "nonce")
    assert encode(read.model_copy(update={field: value})) == data


@every_sample
def test_a_document_encoded_twice_has_the_same_bytes(sample: Document) -> None:
    assert encode(sample) == encode(sample)
    assert encode(decode(type(sample), encode(sample), PATH)) == encode(sample)


def test_two_documents_with_equal_bodies_have_different_bytes() -> None:
    body = {name: getattr(SAMPLES[0], name) for name in ("name", "uuid")}
    assert encode(KINDS[0](**body)) != encode(KINDS[0](**body))


@given(any_document())
def test_any_document_is_read_as_it_was_written_and_written_as_it_was_read(document: Document) -> None:
    data = encode(document)
    read = decode(type(document), data, PATH)
    assert read == document
    assert encode(read) == data == encode(document)
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


@pytest.mark.parametrize(
    "altered",
    [{"format_version": "1"}, {"format_version": None}, {"body": []}, {"body": None}, {"unknown": 1}],
)
def test_a_sealed_envelope_with_wrong_types_or_other_fields_is_corrupt(altered: dict[str, object]) -> None:
    document = PipelineDocument(name=PipelineName("flights"), uuid=PipelineUuid("u"))
    envelope = json.loads(encode(document)) | altered
    envelope.pop("checksum")
    data = canonical(envelope | {"checksum": sha256(canonical(envelope))}) + b"\n"
    with pytest.raises(CorruptDocumentError, match=r"pipeline\.json"):
        decode(PipelineDocument, data, "pipeline.json")
