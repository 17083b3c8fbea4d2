// Package scripts checks the source tree as a whole, in tests: the imports and the purity of
// each package against the tables of docs/architecture.md, the corpora of the fuzz targets,
// the page of requirements, and the verdict and report of `make test`.
package scripts
