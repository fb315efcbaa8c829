"""Are ids typed, printed short, and found again by any unique prefix?"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core.protocol import ids
from core.protocol.errors import IdInvalid
from core.protocol.ids import Kind

SOME = st.binary(min_size=32, max_size=32)
DEV_0 = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


@given(SOME, st.sampled_from(Kind))
def test_the_short_form_is_a_prefix_of_the_full_form(data, kind):
    assert ids.full(kind, data).startswith(ids.short(kind, data))
    assert ids.short(kind, data).startswith(f"{kind.value}_")
    assert len(ids.short(kind, data)) == len(kind.value) + 9


@given(SOME, SOME)
def test_different_ids_have_different_full_forms(one, other):
    assume(one != other)
    assert ids.full(Kind.JOB, one) != ids.full(Kind.JOB, other)


def test_an_id_that_begins_like_hexadecimal_is_found_and_a_doubtful_one_is_not_guessed():
    ours, other = b"\x07\x40" + bytes(30), b"\xd0" + bytes(31)
    assert ids.full(Kind.JOB, ours).startswith("job_0X0")
    for typed in ("job_0X", "job_0x0", "0X", "0X0000", "0x0740"):
        assert ids.find(Kind.JOB, typed, [ours, other], lambda one: one) == ours
    assert ids.find(Kind.JOB, "0xD0", [ours, other], lambda one: one) == other
    rival = b"\x00" * 32
    assert ids.find(Kind.JOB, "job_0X0", [ours, rival], lambda one: one) == ours
    with pytest.raises(IdInvalid, match="ambiguous"):
        ids.find(Kind.JOB, "0X0", [ours, rival], lambda one: one)


@given(st.lists(SOME, min_size=1, max_size=20, unique=True), st.data())
def test_every_unique_prefix_finds_its_id(known, data):
    wanted = data.draw(st.sampled_from(known))
    printed = ids.full(Kind.JOB, wanted)
    length = data.draw(st.integers(5, len(printed)))
    typed = printed[:length]
    bare = typed.removeprefix("job_")
    rivals = [one for one in known if ids.full(Kind.JOB, one).startswith(typed)]
    digits = bare[2:].lower() if bare.startswith("0X") else ""
    as_hex = [one for one in known if digits and one.hex().startswith(digits)]
    for form in (typed, typed.lower(), bare):
        if len({*rivals, *(as_hex if form == bare else ())}) == 1:
            assert ids.find(Kind.JOB, form, known, lambda one: one) == wanted
        else:
            with pytest.raises(IdInvalid, match="ambiguous"):
                ids.find(Kind.JOB, form, known, lambda one: one)


@given(SOME)
def test_the_hexadecimal_form_and_its_prefixes_are_accepted(data):
    typed = "0x" + data.hex()
    for form in (typed, typed[:12], typed.upper().replace("0X", "0x")):
        assert ids.find(Kind.RECEIPT, form, [data], lambda one: one) == data


def test_letters_that_look_like_digits_are_read_as_digits():
    data = bytes.fromhex("0842108421") + bytes(27)
    assert ids.short(Kind.JOB, data) == "job_11111111"
    assert ids.find(Kind.JOB, "job_lIl1", [data], lambda one: one) == data


@pytest.mark.parametrize("typed", ["job_", "", "0x", "rcpt_1111", "job_ZZZZ", "jobs_1111", "Ü"])
def test_nothing_fits_is_an_error_of_the_user(typed):
    with pytest.raises(IdInvalid):
        ids.find(Kind.JOB, typed, [bytes.fromhex("0842108421") + bytes(27)], lambda one: one)


def test_ambiguity_names_the_candidates():
    known = [bytes([1]) * 31 + bytes([n]) for n in range(3)]
    with pytest.raises(IdInvalid) as caught:
        ids.find(Kind.JOB, "job_04", known, lambda one: one)
    assert len(caught.value.details["matches"]) == 3


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), "0x12", "ab" * 32, "0x" + "zz" * 32])
def test_only_32_bytes_are_an_id(data):
    with pytest.raises(IdInvalid):
        ids.raw_id(data)


def test_an_id_is_read_from_bytes_and_text():
    assert ids.raw_id("0x" + "ab" * 32) == ids.raw_id(b"\xab" * 32) == b"\xab" * 32


@given(st.binary(min_size=20, max_size=20))
def test_an_address_has_one_checksummed_form(data):
    right = ids.address(data)
    assert ids.address(right.lower()) == ids.address("0x" + data.hex().upper()) == right


def test_the_checksum_is_that_of_eip_55():
    assert ids.address(DEV_0.lower()) == DEV_0


@pytest.mark.parametrize(
    "text", [DEV_0.replace("9F", "9f", 1), DEV_0[:-1], DEV_0[2:], "0x", "", DEV_0 + "0", "alice"]
)
def test_a_mistyped_address_is_refused(text):
    with pytest.raises(IdInvalid):
        ids.address(text)
