"""What runs on a node: a NumPyClient, and the ClientApp that drives it.

`client_app` is Flower's entry; `numpy_app` puts any NumPyClient behind the Message API;
`identity` gives a node its stable name; `node` loads its data and backbone; `ease_client` does
the local work.
"""
