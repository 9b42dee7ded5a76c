"""The shell around the metadata: replay of the log, the active controller, and the service in front of it."""

from metadata.controller.active import ActiveController, ControllerSettings
from metadata.controller.replay import MetadataReplay
from metadata.controller.service import ControllerService

__all__ = ["ActiveController", "ControllerService", "ControllerSettings", "MetadataReplay"]
