//go:build !cgo

package verbs_test

import (
	"errors"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/verbs"
)

func TestOpenWithoutCgo(t *testing.T) {
	_, err := verbs.Open("rxe0")
	if !errors.Is(err, hca.ErrNoDevice) || !strings.Contains(err.Error(), "without cgo") {
		t.Errorf("error %v, want ErrNoDevice that names cgo", err)
	}
}
