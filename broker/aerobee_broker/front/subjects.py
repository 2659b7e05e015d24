"""The subject of a client's certificate as text, in RFC 2253's form: `CN=checkout,O=Example`.

The text equals that of `openssl x509 -noout -subject -nameopt RFC2253` and of grpcio, so accounts can be found by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# The attribute names of `ssl`, and OpenSSL's abbreviations.
_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "emailAddress",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "serialNumber": "serialNumber",
    "stateOrProvinceName": "ST",
    "surname": "SN",
    "title": "title",
    "userId": "UID",
}
_SPECIAL: Final = frozenset(b',+"\\<>;')


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject of a certificate as returned by `SSLSocket.getpeercert`.

    None without a certificate, and for a subject that is empty or has an unknown attribute.
    """
    parts = []
    for attributes in reversed((certificate or {}).get("subject", ())):
        pairs = []
        for name, value in reversed(attributes):
            if name not in _NAMES:
                return None
            pairs.append(f"{_NAMES[name]}={_escaped(value)}")
        parts.append("+".join(pairs))
    return ",".join(parts) or None


def _escaped(value: str) -> str:
    data = value.encode()
    text = []
    for place, byte in enumerate(data):
        at_end = place == len(data) - 1
        if byte in _SPECIAL or (byte == 0x20 and (place == 0 or at_end)) or (byte == 0x23 and place == 0):
            text.append(f"\\{byte:c}")
        elif 0x20 <= byte < 0x7F:
            text.append(chr(byte))
        else:
            text.append(f"\\{byte:02X}")
    return "".join(text)
