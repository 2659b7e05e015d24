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
def test_as_openssl_prints_it(subject: list[list[tuple[str, str]]], text: str) -> None:
    """So an operator can copy it, and no name can pretend to be another one."""
    assert subject_of({"subject": tuple(map(tuple, subject))}) == text


def test_what_has_no_text() -> None:
    """No certificate, no subject, an attribute of an unknown kind."""
    for certificate in (None, {}, {"subject": ()}, {"subject": ((("1.2.3.4", "zz"),), (("commonName", "x"),))}):
        assert subject_of(certificate) is None
