"""The service's settings: each is written here once, and read from the environment at the edge, once."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from sandbox.job import MIB, Limits


class Settings(BaseSettings):
    """Read from ``SPILLBOX_…`` variables; a nested one is written ``SPILLBOX_LIMITS__WALL_SECONDS``."""

    model_config = SettingsConfigDict(env_prefix="SPILLBOX_", env_nested_delimiter="__", extra="forbid", frozen=True)

    data_dir: Path = Field(Path(".spillbox"), description="Where workspaces, records and the guest root are.")
    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs an API key.")
    port: int = Field(8750, ge=0, le=65535, description="Port to listen on.")
    api_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="At least 16 characters. If set, every request must bear it: `Authorization: Bearer …`.",
    )
    slots: int | None = Field(None, ge=1, le=100, description="Runs at once; the number of processors if not set.")
    queue_length: int = Field(128, ge=0, description="Runs that may wait for a slot; one more is refused as busy.")
    max_request_bytes: int = Field(32 * MIB, ge=1024, description="Size of the body of a tool call.")
    limits: Limits = Field(
        default_factory=Limits, description="The limits of a run and of a workspace, each by its name."
    )
