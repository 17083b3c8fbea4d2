// Package config is what an operator may set, as plain data: from flags or from
// a YAML file, checked in one place. A mistake in a file is reported with its
// line and its field; all mistakes are reported at once.
package config
