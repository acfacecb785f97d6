"""Keys of addresses: an IPv6 customer has too many addresses to count them one by one."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pabal.limits import rate_limit_address

HALF = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
        ("not an address", "not an address"),
        ("", ""),
    ],
)
def test_an_address_is_counted_by_its_network(address: str, key: str) -> None:
    assert rate_limit_address(address) == key


@given(network=HALF, first=HALF, second=HALF)
def test_all_addresses_of_an_ipv6_network_share_a_key(network: int, first: int, second: int) -> None:
    assume(network)  # network 0 contains the mapped IPv4 addresses
    assert rate_limit_address(str(IPv6Address(network << 64 | first))) == rate_limit_address(
        str(IPv6Address(network << 64 | second))
    )


@given(first=HALF, second=HALF, host=HALF)
def test_two_networks_have_different_keys(first: int, second: int, host: int) -> None:
    assume(first != second)
    assert rate_limit_address(str(IPv6Address(first << 64 | host))) != rate_limit_address(
        str(IPv6Address(second << 64 | host))
    )


@given(first=st.integers(0, 2**32 - 1), second=st.integers(0, 2**32 - 1))
def test_every_ipv4_address_has_its_own_key(first: int, second: int) -> None:
    assert (rate_limit_address(str(IPv4Address(first))) == rate_limit_address(f"::ffff:{IPv4Address(second)}")) is (
        first == second
    )
