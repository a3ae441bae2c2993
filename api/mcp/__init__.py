"""The Model Context Protocol: our tools for its clients, and a gateway before its servers. Uses the official SDK.

wire         data goes past the SDK, byte for byte
rounds       what a client gives back in a later round of a call
answers      outputs of tools as results of the protocol
resources    files, attachments and views as resources
server       the tools as a server
endpoint     the server over HTTP
stdio        the server over the standard streams
settings     which other servers there are, and the rules for their tools
transports   bounded ways to another server: a process, HTTP
connection   one connection to another server, in whichever era it speaks
gateway      other servers' tools, resources and prompts among our own
"""
