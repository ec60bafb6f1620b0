"""Build hook: an editable install gets the .pth file, and the two upstream folders by path."""

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        if self.target_name == "wheel" and version == "editable":
            # mlx_lm_kimi/__init__.py finds tool_parsers/ and chat_templates/ beside
            # itself, so only the .pth file must be copied.
            build_data["force_include_editable"]["mlx_lm_kimi.pth"] = "mlx_lm_kimi.pth"
