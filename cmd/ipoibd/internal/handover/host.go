package handover

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/systemd"
	"ipoibd/link/kernel/capsule"
)

const (
	// settleLimit bounds the wait until no interface and no device has anything else under way. Traffic
	// flows meanwhile.
	settleLimit = 2 * time.Second
	// givePause is the minimum time between a hand-over that failed after traffic had stopped for it and the
	// next one. Otherwise a program that asks and then stalls could stop traffic most of the time.
	givePause = 10 * time.Second
)

// Live is what a process runs and can hand over.
type Live interface {
	// Settle waits until no part is on its way to another state, without stopping any.
	Settle(context.Context) error
	// Park stops everything at a boundary, and returns until when it may stand still.
	Park(context.Context) (limit time.Time, err error)
	// Export puts what is parked into a capsule.
	Export(*capsule.Writer) error
	// Resume continues what is parked, also after an error of Park.
	Resume()
	// Leave ends what is parked without an effect on what the taker continues.
	Leave()
}

// Host hands over what this process runs. Its owner serializes the calls.
type Host struct {
	Journal *journal.Journal
	Log     *slog.Logger

	// The last hand-over that failed after traffic had stopped for it.
	failed   *Giver // nil: there was none
	failedAt time.Time
}

// Ready returns why no hand-over may begin at the time now, or nil.
func (h *Host) Ready(now time.Time) error {
	if h.failed == nil {
		return nil
	}
	select {
	case <-h.failed.Done():
	default: // it has the descriptors, and does not know that it must not use them
		return fmt.Errorf("process %d has not noticed yet that its take-over failed; end it", h.failed.PID)
	}
	if left := h.failedAt.Add(givePause).Sub(now); left > 0 {
		return fmt.Errorf("the last hand-over, to process %d, failed (see the log); try again in %s",
			h.failed.PID, max(left, time.Second).Round(time.Second))
	}
	return nil
}

// HandOver hands everything over to the taker that accept connects, and returns whether it did; if not, this process
// keeps everything, and the log says why. An error is that of accept.
func (h *Host) HandOver(ctx context.Context, what Live, accept func() (*net.UnixConn, error)) (given bool, err error) {
	conn, err := accept()
	if err != nil {
		return false, err
	}
	g, err := Give(conn)
	if err != nil {
		h.Log.Warn("not handed over", "err", err)
		return false, nil
	}
	began := time.Now()
	if err := h.give(ctx, what, g); err != nil {
		g.Withdraw(err)
		h.Log.Error("hand-over failed; still running; if the new process cannot take over, stop this one and start "+
			"the new one instead", "to", g.PID, "err", err, "after", time.Since(began))
		text := fmt.Sprintf("not handed over to process %d: %v", g.PID, err)
		h.Journal.Add(journal.Entry{Scope: "daemon", Kind: journal.KindNote, Text: text})
		return false, nil
	}
	h.Log.Info("handed over", "to", g.PID, "after", time.Since(began))
	if err := systemd.Succeed(g.PID); err != nil {
		h.Log.Warn("systemd: cannot name the new process as the main process, so systemd may stop it with the "+
			"service; if it does, run 'systemctl start ipoibd'", "err", err)
	}
	return true, nil
}

// give stops everything at a boundary, and offers it. After an error it continues.
func (h *Host) give(ctx context.Context, what Live, g *Giver) error {
	within, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := what.Settle(within); err != nil {
		return err
	}
	w := capsule.NewWriter()
	defer w.Close()
	limit, err := what.Park(within)
	if err == nil {
		err = what.Export(w)
	}
	if err == nil {
		err = g.Offer(w, limit)
	}
	if err != nil {
		what.Resume()
		h.failed, h.failedAt = g, time.Now()
		return err
	}
	what.Leave()
	return nil
}
