//go:build !cgo || !linux

package verbs

import (
	"fmt"

	"ipoibd/hca"
)

// Open fails, because this build cannot call libibverbs.
func Open(name string) (hca.Device, error) {
	err := fmt.Errorf("%w: built without cgo: only the software HCA is available", hca.ErrNoDevice)
	return nil, refused(verbOpen, name, err)
}
