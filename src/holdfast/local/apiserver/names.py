"""The syntax of names, labels and annotations; each check returns the problems that it finds."""

import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253
# A generated name is the prefix, cut to fit a label, plus five characters from an alphabet that spells no words.
SUFFIX_LENGTH = 5
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
PREFIX_LENGTH = LABEL_LENGTH - SUFFIX_LENGTH


def dns_label_problems(name: str) -> list[str]:
    return _length(name, LABEL_LENGTH) + _shape(
        name,
        _DNS_LABEL,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
        "with an alphanumeric character (e.g. 'my-name')",
    )


def dns_1035_problems(name: str) -> list[str]:
    return _length(name, LABEL_LENGTH) + _shape(
        name,
        _DNS_1035,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character (e.g. 'my-name')",
    )


def dns_subdomain_problems(name: str) -> list[str]:
    return _length(name, SUBDOMAIN_LENGTH) + _shape(
        name,
        _DNS_SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'example.com')",
    )


def label_key_problems(key: str) -> list[str]:
    """A qualified name: an optional DNS prefix, a slash, and a name."""
    prefix, slash, name = key.rpartition("/")
    if slash and not prefix:
        return ["prefix part must be non-empty"]
    problems = [f"prefix part {problem}" for problem in dns_subdomain_problems(prefix)] if slash else []
    if not name:
        return [*problems, "name part must be non-empty"]
    shape = _shape(
        name,
        _QUALIFIED,
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        "alphanumeric character (e.g. 'my.name')",
    )
    return problems + [f"name part {problem}" for problem in _length(name, LABEL_LENGTH)] + shape


def label_value_problems(value: str) -> list[str]:
    if not value:
        return []
    return _length(value, LABEL_LENGTH) + _shape(
        value,
        _QUALIFIED,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'my-value')",
    )


def _length(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} characters"] if len(text) > limit else []


def _shape(text: str, pattern: re.Pattern[str], problem: str) -> list[str]:
    return [] if pattern.fullmatch(text) else [problem]
