package main

import "ipoibd/hca/verbs"

// openHCA opens an RDMA device of the kernel by its name.
var openHCA = verbs.Open
