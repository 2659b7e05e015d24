"""Subjects of certificates as text: what OpenSSL prints with `-nameopt RFC2253`."""

from __future__ import annotations

import pytest

from aerobee_broker.front.subjects import subject_of


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ([[("organizationName", "Example")], [("commonName", "shop")]], "CN=shop,O=Example"),
        (
            [[("countryName", "DE")], [("organizationName", 'Ex, "mple;')], [("commonName", "a"), ("userId", "b")]],
            r"UID=b+CN=a,O=Ex\, \"mple\;,C=DE",
        ),
        ([[("localityName", "K\u00f6ln")], [("commonName", "a\0b")]], r"CN=a\00b,L=K\C3\B6ln"),
        ([[("organizationalUnitName", " a")], [("commonName", "#x ")]], r"CN=\#x\ ,OU=\ a"),
        ([[("commonName", "a,O=Example")]], r"CN=a\,O=Example"),
        ([[("commonName", " ")]], r"CN=\ "),
    ],
)
def test_a_subject_is_printed_like_by_openssl(subject: list[list[tuple[str, str]]], text: str) -> None:
    """The text equals OpenSSL's, so operators can copy it, and its escapes prevent forged names."""
    assert subject_of({"subject": tuple(map(tuple, subject))}) == text


def test_certificates_without_a_subject() -> None:
    """A missing certificate, an empty subject, and an unknown attribute give None."""
    for certificate in (None, {}, {"subject": ()}, {"subject": ((("1.2.3.4", "zz"),), (("commonName", "x"),))}):
        assert subject_of(certificate) is None
