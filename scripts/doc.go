// Package scripts has the checks of the source tree as a whole, as tests: who
// imports whom, after the table of docs/architecture.md, and what pure packages
// stay away from.
package scripts
