"""Storage options of s3fs and adlfs as obstore takes them: pure but for what botocore finds.

What has no counterpart is `UntranslatedError`, by name; whoever opens the storage takes the fsspec library then.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

_CREDENTIALS_LAST = timedelta(minutes=5)  # then botocore is asked again; it renews what runs out, and reads no file anew
_S3 = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token", "anon": "skip_signature"}
_S3 |= {"endpoint_url": "endpoint", "requester_pays": "request_payer"}
_S3_CLIENT = {"endpoint_url": "endpoint", "region_name": "region", "aws_access_key_id": "access_key_id"}
_S3_CLIENT |= {"aws_secret_access_key": "secret_access_key", "aws_session_token": "session_token"}
_AZURE = {"account_name": "account_name", "account_key": "account_key", "sas_token": "sas_key"}
_AZURE |= {"tenant_id": "tenant_id", "client_id": "client_id", "client_secret": "client_secret"}
_CONNECTION = {"AccountName": "account_name", "AccountKey": "account_key", "SharedAccessSignature": "sas_key"}
_CONNECTION |= {"BlobEndpoint": "endpoint"}


class UntranslatedError(Exception):
    """What of the options or the environment obstore has no counterpart for."""


@dataclass(frozen=True)
class Settings:
    """How a bucket is opened: obstore's own options as JSON, and the AWS profile whose credentials botocore finds, if any."""

    config: str = field(repr=False)
    ca_file: str = ""
    profile: str | None = None
    from_botocore: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The options by obstore's names."""
        return dict(json.loads(self.config))


def s3_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Of s3fs' options, completed from ``environment`` and botocore's files. UntranslatedError."""
    profile = options.get("profile") or environment.get("AWS_PROFILE")
    config = _renamed(options.get("client_kwargs") or {}, _S3_CLIENT, "client_kwargs.")
    config |= _renamed({key: value for key, value in options.items() if key not in ("client_kwargs", "profile")}, _S3)
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    has_keys = "access_key_id" in config or bool(config.get("skip_signature"))
    if not has_keys and not options.get("profile"):
        has_keys = bool(environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"))
    region = config.get("region") or environment.get("AWS_DEFAULT_REGION")
    endpoint = config.get("endpoint") or next((environment[name] for name in names if environment.get(name)), None)
    if profile or not has_keys:
        found_region, found_endpoint = _of_botocore(profile)
        region, endpoint = region or found_region, endpoint or found_endpoint
    if not region and not endpoint:
        raise UntranslatedError("a bucket whose region is not named (client_kwargs.region_name, AWS_DEFAULT_REGION)")
    config |= {"region": region or "us-east-1"} | ({"endpoint": endpoint} if endpoint else {})
    # TLS sees to it that what arrives is what was sent; a hash of each object for the signature took half of the time of a put.
    config["unsigned_payload"] = not str(config.get("endpoint", "")).startswith("http://")
    return Settings(json.dumps(config), environment.get("AWS_CA_BUNDLE", ""), profile, not has_keys)


def abfs_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Of adlfs' options: a connection string, or an account with a key, a signature or a client's secret. UntranslatedError."""
    rest = {key: value for key, value in options.items() if key != "connection_string"}
    fields = dict(part.split("=", 1) for part in str(options.get("connection_string") or "").split(";") if "=" in part)
    fields = {key: value for key, value in fields.items() if key not in ("DefaultEndpointsProtocol", "EndpointSuffix")}
    config = _renamed(fields, _CONNECTION, "connection_string.") | _renamed(rest, _AZURE)
    if not {"account_key", "sas_key", "client_secret"} & config.keys():
        raise UntranslatedError("an account without account_key, sas_token or client_secret")
    return Settings(json.dumps(config))


def _renamed(options: Mapping[str, Any], names: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    renamed = {}
    for key, value in options.items():
        if value is None:
            continue
        if key not in names or not isinstance(value, str | bool):
            raise UntranslatedError(f"{prefix}{key}")
        renamed[names[key]] = value
    return renamed


def _of_botocore(profile: str | None) -> tuple[str | None, str | None]:
    """Region and endpoint that the user's files name."""
    session = _session(profile)
    return session.get_config_variable("region"), session.get_scoped_config().get("endpoint_url")


def botocore_credentials(profile: str | None) -> Callable[[], dict[str, Any]]:
    """What finds credentials as s3fs does: environment, files, single sign-on, roles of containers and machines."""
    found = _session(profile).get_credentials()
    if found is None:
        raise PermissionError("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role")

    def credentials() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        keys = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key, "token": frozen.token}
        return keys | {"expires_at": datetime.now(UTC) + _CREDENTIALS_LAST}

    return credentials


def _session(profile: str | None) -> Any:
    try:
        from botocore.session import Session
    except ImportError:
        raise UntranslatedError("credentials that only botocore finds") from None
    return Session(profile=profile)
