"""The file of tenants: what it gives them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.server.key_file import read_key_file
from octavo.server.keys import KeyTable
from octavo.server.tenants import SHARED, Tenant, TenantLimits

LIKE = Tenant(name="like", limits=TenantLimits(max_running=9))


def read(tmp_path, text, like=LIKE):
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    return read_key_file(file, like)


def test_a_tenant_gets_its_keys_limits_and_shares(tmp_path):
    alice, bob = read(
        tmp_path,
        """
tenants:
  alice:
    keys: [one, "sha256:abc"]
    max_queued: 16
    tokens_per_minute: 60000
    guaranteed: 0.1
    maximum: 0.5
    namespace: team
  bob: {keys: two, max_running: null}
""",
    )

    assert alice.keys == ("one", "sha256:abc")
    assert alice.tenant == Tenant(
        name="alice",
        namespace="team",
        limits=TenantLimits(max_running=9, max_queued=16, tokens_per_minute=60000),
        guaranteed=0.1,
        maximum=0.5,
    )
    assert bob.keys == ("two",)
    assert bob.tenant.limits.max_running is None
    assert bob.tenant.namespace is None


def test_a_shared_memory_is_for_all_that_name_no_namespace(tmp_path):
    like = Tenant(name="like", namespace=SHARED)
    alice, bob = read(tmp_path, "tenants: {a: {keys: k}, b: {keys: l, namespace: own}}", like)

    assert alice.tenant.namespace == SHARED
    assert bob.tenant.namespace == "own"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have a mapping `tenants`"),
        ("tenants: {}", "names no tenant"),
        ("tenant: {}\ntenants: {a: {keys: k}}", "and nothing else, not 'tenant'"),
        ("tenants: {'a b': {keys: k}}", "tenant 'a b': a name stands in logs"),
        ("tenants: {'': {keys: k}}", "a name stands in logs"),
        ("tenants: {1: {keys: k}, '1': {keys: l}}", "name of a tenant must be a text, not '1'"),
        ("tenants: {no: {keys: k}}", "name of a tenant must be a text, not 'False'"),
        ("tenants: {a: k}", "tenant 'a' must be a mapping with `keys`"),
        ("tenants: {a: {}}", "tenant 'a' needs keys"),
        ("tenants: {a: {keys: []}}", "tenant 'a' needs keys"),
        ("tenants: {a: {keys: 123}}", "in quotes"),
        ("tenants: {a: {keys: k, max: 1}}", "no field 'max'; it has: keys, namespace"),
        ("tenants: {a: {keys: k, max_running: 0}}", "tenant 'a': max_running must be"),
        ("tenants: {a: {keys: k, maximum: 2}}", "maximum must be a share"),
        ("tenants: {a: {keys: k, namespace: ''}}", "namespace must be a name"),
        ("tenants: {a: {keys: k, namespace: 3}}", "namespace must be a name"),
        ("tenants:\n  a: {keys: k}\n  a: {keys: l}", "line 3: 'a' stands there twice"),
        ("tenants: {a: {secret-key-of-somebody: 1}}", "no field 'secr…'"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_a_file_that_is_no_yaml_is_refused_without_a_piece_of_it(tmp_path):
    with pytest.raises(ConfigError, match="line 2 is no YAML") as refused:
        read(tmp_path, "tenants:\n  a: {keys: [hidden}")

    assert "hidden" not in str(refused.value)


def test_the_file_that_the_docs_show_is_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "keys-and-tenants.md").read_text()
    text = page.split("```yaml")[1].split("```")[0]

    keys = KeyTable(read(tmp_path, text))

    assert keys.tenant("alices-key") is keys.tenant("test")
    assert keys.tenant("bobs-key").salt() == keys.tenant("carols-key").salt()
