// Package config holds the settings of an operator as plain data, from flags or from a
// YAML file, and checks them in one place. All mistakes are reported at once, as data:
// file, line, field and text.
package config
