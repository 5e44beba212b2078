"""The machine: files that are written whole or not at all, memory, and names as they are shown."""

from kernelseed.system.files import (
    disk_file,
    explained,
    lock_folder,
    make_folder,
    parse_json,
    read_json,
    read_text,
    remove_abandoned,
    require_new,
    sync_folder,
    to_json,
    whole_folder,
    whole_or_nothing,
    write_json,
    write_text,
)
from kernelseed.system.memory import gigabytes, memory_limit
from kernelseed.system.names import cell, printable, utf8_path

__all__ = [
    "cell",
    "disk_file",
    "explained",
    "gigabytes",
    "lock_folder",
    "make_folder",
    "memory_limit",
    "parse_json",
    "printable",
    "read_json",
    "read_text",
    "remove_abandoned",
    "require_new",
    "sync_folder",
    "to_json",
    "utf8_path",
    "whole_folder",
    "whole_or_nothing",
    "write_json",
    "write_text",
]
