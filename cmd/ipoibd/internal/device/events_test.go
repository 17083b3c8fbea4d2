package device

import (
	"log/slog"
	"testing"

	"ipoibd/hca"
)

// The repetition of a CQ's error and changes of GIDs are logged for debugging only, other events each
// time; the loss of a link is a warning.
func TestEventsThatRepeatThemselves(t *testing.T) {
	cq := func(num uint32) hca.AsyncEvent {
		return hca.AsyncEvent{Type: hca.EventCQErr, On: hca.ObjectID{Kind: hca.KindCQ, Num: num}}
	}
	gids := hca.AsyncEvent{Type: hca.EventGIDChange}
	port := hca.AsyncEvent{Type: hca.EventPortActive, On: hca.ObjectID{Kind: hca.KindPort, Num: 1}}
	for _, c := range []struct {
		ev, last hca.AsyncEvent
		want     slog.Level
	}{
		{cq(1), hca.AsyncEvent{}, slog.LevelInfo},
		{cq(1), cq(1), slog.LevelDebug},
		{cq(2), cq(1), slog.LevelInfo},
		{port, port, slog.LevelInfo},
		{gids, port, slog.LevelDebug},
		{hca.AsyncEvent{Type: hca.EventPortErr}, port, slog.LevelWarn},
	} {
		if got := eventLevel(c.ev, c.last); got != c.want {
			t.Errorf("%v after %v: %s, want %s", c.ev, c.last, got, c.want)
		}
	}
}
