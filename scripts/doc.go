// Package scripts has the checks of the source tree as a whole, as tests: which
// package imports which, by the table of docs/architecture.md, what pure packages
// may not import, the corpora of the fuzz targets, the tests of each requirement of
// recovery, and what `make test` reports.
package scripts
