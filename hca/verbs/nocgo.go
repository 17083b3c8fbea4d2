//go:build !cgo || !linux

package verbs

import (
	"fmt"

	"ipoibd/hca"
)

// Open fails: libibverbs cannot be called from this build.
func Open(name string) (hca.Device, error) {
	return nil, refused(verbOpen, name, fmt.Errorf("%w: built without cgo; only the software HCA is there", hca.ErrNoDevice))
}
