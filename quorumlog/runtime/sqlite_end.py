"""Ends the use of a SQLite database without closing it.

Closing the last connection to a database with a write-ahead log syncs that log, copies it into the database and
deletes it.  After a failed sync, this would destroy the better copy: Linux reports a failed write-back once, so the
next sync succeeds although pages may be missing.  SQLite's own option against this (SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
needs Python 3.12; this module works with every version.
"""

from __future__ import annotations

import ctypes
import sqlite3

_add_reference = ctypes.pythonapi.Py_IncRef
_add_reference.argtypes = (ctypes.py_object,)
_add_reference.restype = None


def abandon(connection: sqlite3.Connection) -> None:
    """Keep `connection` open until the process ends; the kernel then closes its files, and SQLite writes nothing.

    Its locks are held until then.  The extra reference is never released, because the interpreter closes a connection
    when it destroys the object, and it destroys every object at its exit.
    """
    _add_reference(connection)
