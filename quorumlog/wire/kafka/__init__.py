"""The Kafka protocol on the wire: the part that the broker's listener and our clients share.

- `buffer`: bounds-checked reading of untrusted bytes, and the varints of the flexible versions;
- `codec`: frame and message headers, and the generated schemas of `kio` behind plain mappings, loaded on first use;
- `produce`, `fetch`: the two hot messages, written by hand so that record bytes are never copied;
- `framing`: an asyncio protocol that splits a byte stream into frames of bounded size.

All input is untrusted. The only error that leaves this package is `RemoteProtocolError`.
"""
