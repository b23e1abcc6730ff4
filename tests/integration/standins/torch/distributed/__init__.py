PrefixStore = TCPStore = object
