"""The service's settings: each is written here once, and read from the environment and a file at the edge, once."""

from pathlib import Path
from typing import Self

from pydantic import Field, HttpUrl, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from api.logs import Format
from api.tokens import is_safe_issuer
from sandbox import guest_root
from sandbox.job import MIB, Limits
from sandbox.runtimes.containers import ContainerSettings
from sandbox.spills.spill import SpillSettings
from sandbox.tools.toolbox import RuntimeName


class Settings(BaseSettings):
    """Read from ``SPILLBOX_…`` variables; a nested one is written ``SPILLBOX_LIMITS__WALL_SECONDS``."""

    model_config = SettingsConfigDict(env_prefix="SPILLBOX_", env_nested_delimiter="__", extra="forbid", frozen=True)

    data_dir: Path = Field(Path(".spillbox"), description="Where workspaces, records and the guest root are.")
    guest_root: Path | None = Field(None, description="Where the guest root is, if not in the data folder.")
    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs an API key.")
    port: int = Field(8750, ge=0, le=65535, description="Port to listen on.")
    api_key: SecretStr | None = Field(
        None,
        json_schema_extra={"minLength": 16},
        description="At least 16 characters. If set, every request must bear it: `Authorization: Bearer …`.",
    )
    metrics_key: SecretStr | None = Field(
        None,
        json_schema_extra={"minLength": 16},
        description="At least 16 characters: a key for `/metrics` and nothing else, which no tenant's key reads.",
    )
    oidc_issuer: str | None = Field(
        None, description="An OpenID Connect issuer, as its tokens have it (`iss`); they are taken beside keys."
    )
    oidc_audience: str | None = Field(None, description="Whom the tokens have to be for (`aud`).")
    oidc_tenant_claim: str = Field("tenant", min_length=1, description="The claim that names the tenant.")
    runtime: RuntimeName = Field(
        "warm",
        description="`warm`: fresh jails around interpreters that are there already; `nsjail`: new ones for each "
        "run; `docker`: a container for each workspace in use; `none`: no scripts, only saved results and what is built of them.",
    )
    docker_image: str = Field(
        "spillbox-runtime:latest", min_length=1, description="With `docker`: the image that scripts run in."
    )
    docker_runtime: str | None = Field(
        None,
        description="With `docker`: an OCI runtime that Docker knows, such as `runsc` (gVisor); Docker's own if not set.",
    )
    docker_idle_seconds: float = Field(
        120, gt=0, description="With `docker`: how long a container stands after the last run in its workspace."
    )
    docker_containers: int = Field(
        32, ge=1, le=256,
        description="With `docker`: how many containers stand at a time, unless more runs are under way.",
    )  # fmt: skip
    docker_cpus: float = Field(1, gt=0, description="With `docker`: processors that one container may use.")
    slots: int | None = Field(None, ge=1, le=100, description="Runs at once; the number of processors if not set.")
    queue_length: int = Field(
        128, ge=0, description="Runs of a tenant that may wait for a slot; one more is refused as busy."
    )
    tenant_slots: int | None = Field(
        None,
        ge=1,
        description="The most slots that one tenant has at once, also while others are free; all if not set.",
    )
    tenant_calls_per_minute: int | None = Field(
        None, ge=1, description="Requests of a tenant in any minute, over HTTP and MCP together; any number if not set."
    )
    max_request_bytes: int = Field(32 * MIB, ge=1024, description="Size of the body of a tool call.")
    max_spill_bytes: int = Field(256 * MIB, ge=1024, description="Size of the body of a spill.")
    body_bytes: int = Field(
        1024 * MIB, ge=1024, description="Bodies of requests in memory, of all tenants; what has no room there waits."
    )
    tenant_body_bytes: int | None = Field(
        None, ge=1024, description="The most of them that are one tenant's; half if not set."
    )
    spill: SpillSettings = Field(
        default_factory=SpillSettings, description="When a result becomes a file, and how much of it a model gets."
    )
    keep_results_days: float = Field(7, gt=0, description="How long `results/` and `errors/` are kept.")
    clean_hours: float = Field(6, gt=0, description="How often the service removes what is older.")
    disk_bytes: int | None = Field(
        None, ge=MIB, description="The most that the whole data folder may hold; no quota if not set."
    )
    tenant_disk_bytes: int | None = Field(
        None,
        ge=MIB,
        description="The most that a tenant's workspaces and attachments hold together; no quota if not set.",
    )
    public_url: str = Field(
        "", description="What users reach the service by, such as https://spillbox.example.org; put before links."
    )
    link_seconds: int = Field(86_400, ge=60, description="How long a signed download link works, where a key is set.")
    mcp_servers: Path | None = Field(
        None,
        description="A file of other MCP servers (`mcpServers`), whose tools are offered too and whose results spill.",
    )
    approval_seconds: float = Field(
        300, gt=0, description="How long a call waits for a person's approval; from then on nobody can give it."
    )
    tenant_approvals: int = Field(
        100, ge=1, description="Calls of a tenant that may wait for approval; one more is refused as busy."
    )
    drain_seconds: float = Field(
        30, ge=0, description="How long calls under way may go on when the service is told to stop (SIGTERM)."
    )
    log_format: Format = Field(
        "text", description="Of the log on standard error: `text`, or `json`, one object a line."
    )
    otlp_endpoint: HttpUrl | None = Field(
        None,
        description="A collector of OpenTelemetry, such as http://collector:4318, which traces are sent to "
        "(`/v1/traces`); needs `spillbox[traces]`.",
    )
    limits: Limits = Field(
        default_factory=Limits, description="The limits of a run and of a workspace, each by its name."
    )

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """The environment comes before the file, which a subclass names."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def most_body_bytes_of_a_tenant(self) -> int:
        """As set, or half of all."""
        return self.tenant_body_bytes or self.body_bytes // 2

    @property
    def guest_root_folder(self) -> Path:
        """Where the guest root is, or is built."""
        return self.guest_root or self.data_dir / guest_root.FOLDER

    @property
    def containers(self) -> ContainerSettings:
        """Those of the runtime `docker`."""
        return ContainerSettings(
            image=self.docker_image, runtime=self.docker_runtime or None, idle_seconds=self.docker_idle_seconds,
            containers=self.docker_containers, cpus=self.docker_cpus,
        )  # fmt: skip

    @field_validator("api_key", "metrics_key")
    @classmethod
    def _can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        """A key travels in a header: printable ASCII, without the line end that a file may add."""
        if key is None:
            return None
        text = key.get_secret_value().strip()
        if len(text) < 16 or not (text.isascii() and text.isprintable()):
            raise ValueError("a key is at least 16 printable ASCII characters")
        return SecretStr(text)

    @model_validator(mode="after")
    def _bodies_have_room(self) -> Self:
        most = self.most_body_bytes_of_a_tenant
        if not max(self.max_request_bytes, self.max_spill_bytes) <= most <= self.body_bytes:
            raise ValueError(
                f"one body has to fit into what a tenant may have in memory, and that into what all may: MAX_REQUEST_BYTES "
                f"({self.max_request_bytes:,}) and MAX_SPILL_BYTES ({self.max_spill_bytes:,}) are at most TENANT_BODY_BYTES "
                f"({most:,}), and this at most BODY_BYTES ({self.body_bytes:,})"
            )
        return self

    @model_validator(mode="after")
    def _issuer_is_safe(self) -> Self:
        if (self.oidc_issuer is None) != (self.oidc_audience is None):
            raise ValueError("OIDC_ISSUER and OIDC_AUDIENCE belong together: set both, or none")
        if self.oidc_issuer and not is_safe_issuer(self.oidc_issuer):
            raise ValueError("OIDC_ISSUER begins with https://, since whoever answers in its place lets in anyone")
        return self

    @model_validator(mode="after")
    def _walls_are_those_that_were_asked_for(self) -> Self:
        if self.docker_runtime and self.runtime != "docker":
            raise ValueError(
                f"DOCKER_RUNTIME ({self.docker_runtime}) needs RUNTIME=docker: with {self.runtime} no script would run in it"
            )
        return self
