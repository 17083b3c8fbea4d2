package softqp

import (
	"errors"
	"slices"
	"testing"

	"ipoibd/hca"
)

func wcs(ids ...uint64) (out []hca.WC) {
	for _, id := range ids {
		out = append(out, hca.WC{ID: id, QPN: hca.QPN(id % 2)})
	}
	return out
}

func polled(t *testing.T, c *CQ, n int) (ids []uint64) {
	t.Helper()
	wc := make([]hca.WC, n)
	got, err := c.Poll(wc)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wc[:got] {
		ids = append(ids, w.ID)
	}
	return ids
}

func TestCQ(t *testing.T) {
	c := NewCQ(4)
	if s := c.Push(wcs(1, 2, 3)); s != SignalNone {
		t.Errorf("push, not armed: %v", s)
	}
	if err := c.Arm(); err != nil {
		t.Fatal(err)
	}
	if s := c.Push(nil); s != SignalNone {
		t.Errorf("push of nothing: %v", s)
	}
	if s := c.Push(wcs(4)); s != SignalArmed {
		t.Errorf("push to an armed CQ: %v, want %v", s, SignalArmed)
	}
	if ids := polled(t, &c, 3); !slices.Equal(ids, []uint64{1, 2, 3}) {
		t.Errorf("polled %v, want [1 2 3]", ids)
	}
	if s := c.Push(wcs(5, 6, 7)); s != SignalNone {
		t.Errorf("push, signal spent: %v", s)
	}
	c.Remove(1) // odd IDs
	if ids := polled(t, &c, 9); !slices.Equal(ids, []uint64{4, 6}) {
		t.Errorf("polled %v after the removal", ids)
	}
}

// An overrun discards the queued completions and is reported once.
func TestCQOverrun(t *testing.T) {
	c := NewCQ(2)
	if s := c.Push(wcs(1)); s != SignalNone || c.failed {
		t.Fatal("failed too early")
	}
	if s := c.Push(wcs(2, 3)); s != SignalOverrun || !c.failed {
		t.Fatalf("overrun: %v, want %v", s, SignalOverrun)
	}
	if s := c.Push(wcs(4)); s != SignalNone {
		t.Errorf("push after the overrun: %v", s)
	}
	if n, err := c.Poll(make([]hca.WC, 3)); n != 0 || !errors.Is(err, hca.ErrCQ) {
		t.Errorf("poll: %d, %v, want ErrCQ", n, err)
	}
	if err := c.Arm(); !errors.Is(err, hca.ErrCQ) {
		t.Errorf("arm: %v, want ErrCQ", err)
	}
	c.Remove(1)
}
