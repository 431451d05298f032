"""The formats that go over the wire, each read into messages and written back from a plan."""
