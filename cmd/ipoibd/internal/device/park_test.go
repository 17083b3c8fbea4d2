package device

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A parked device carries out nothing until it is released.
func TestPark(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.healthy(soon)
		parked, err := b.Park(b.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		within, cancel := context.WithTimeout(b.t.Context(), time.Second)
		defer cancel()
		if err := b.Answers(within); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a parked device answers: %v", err)
		}
		if _, err := b.Park(within); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a parked device was parked: %v", err)
		}
		parked.Release()
		if err := b.Answers(b.t.Context()); err != nil {
			t.Errorf("a released device: %v", err)
		}
	})
}
