package device

import (
	"errors"

	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// Classify is [qprecovery.OfVerbError] for a guarded device, on which a verb that
// hangs is an error of its own.
func Classify(otherwise qprecovery.Verb, err error) qprecovery.Class {
	if errors.Is(err, guard.ErrStuck) {
		return qprecovery.ClassStuck
	}
	return qprecovery.OfVerbError(otherwise, err)
}
