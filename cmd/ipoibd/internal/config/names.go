package config

import (
	"maps"
	"slices"
	"strings"
)

// names lists the known fields, sorted.
func names[T any](fs fields[T]) string {
	return strings.Join(slices.Sorted(maps.Keys(fs)), ", ")
}
