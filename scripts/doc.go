// Package scripts checks the source tree as a whole, in tests: the imports and the purity of
// each package against the tables of imports.md, the corpora of the fuzz targets,
// the page of requirements, and the verdict and report of `make test`.
//
// # Rings
//
// There are three rings of tests: pure ones; two daemons on memfabric inside synctest; real TAPs
// in network namespaces (package nstest, which needs no root). In addition, guests with Debian's
// kernels have the real RDMA stack (scripts/vm), and containers the sidecar (scripts/docker, as
// root). Every codec and every state machine that takes input from outside has a fuzz target.
// A test that needs minutes also has a short form: `make test` runs the short forms, `make soak`
// the long ones.
package scripts
