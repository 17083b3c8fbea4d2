package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/systemd"
	"ipoibd/link/kernel/capsule"
)

// Limits of a hand-over.
const (
	// settleLimit bounds the wait until no interface and no device has anything else under way. Traffic
	// flows meanwhile.
	settleLimit = 2 * time.Second
	// givePause is the minimum time between a hand-over that failed after traffic had stopped for it and the
	// next one. Otherwise a program that asks and then stalls could stop traffic most of the time.
	givePause = 10 * time.Second
)

// handed is the part "daemon" of a capsule. The others are "control" and, if there is one, "metrics", the listeners;
// "inhibitors" of package power; and those of package fleet.
type handed struct {
	Config    config.Config              `json:"config"`    // without the interfaces that have failed
	Suspended bool                       `json:"suspended"` // by the operator
	Journal   []journal.Entry            `json:"journal"`
	Systemd   systemd.State              `json:"systemd"`
	Left      map[string]json.RawMessage `json:"left"` // saved interfaces that do not run: see current.Current.TakeBack
}

// handOver hands everything over to another process, which ends this one: see [control.Daemon].
func (d *daemon) handOver(accept func() (*net.UnixConn, error)) error {
	release, err := d.current.TryHold()
	if err != nil {
		return err
	}
	defer release()
	if err := d.lastGive.allows(time.Now()); err != nil {
		return err
	}
	conn, err := accept()
	if err != nil {
		return err
	}
	g, err := handover.Give(conn)
	if err != nil {
		d.opts.Log.Warn("not handed over", "err", err)
		return nil
	}
	began := time.Now()
	if err := d.give(g); err != nil {
		d.opts.Log.Error("hand-over failed; still running; if the new process cannot take over, stop this one and start "+
			"the new one instead", "to", g.PID, "err", err, "after", time.Since(began))
		text := fmt.Sprintf("not handed over to process %d: %v", g.PID, err)
		d.journal.Add(journal.Entry{Scope: "daemon", Kind: journal.KindNote, Text: text})
		return nil
	}
	d.opts.Log.Info("handed over", "to", g.PID, "after", time.Since(began))
	if err := systemd.Succeed(g.PID); err != nil {
		d.opts.Log.Warn("systemd: cannot name the new process as the main process, so systemd may stop it with the "+
			"service; if it does, run 'systemctl start ipoibd'", "err", err)
	}
	d.end(nil) // before the lock is free
	return nil
}

// failedGive is the last hand-over that failed after traffic had stopped for it.
type failedGive struct {
	giver *handover.Giver // nil: there was none
	at    time.Time
}

// allows returns why no other hand-over may begin now, or nil.
func (f failedGive) allows(now time.Time) error {
	if f.giver == nil {
		return nil
	}
	select {
	case <-f.giver.Done():
	default: // it has the descriptors, and does not know that it must not use them
		return fmt.Errorf("%w: process %d has not noticed yet that its take-over failed; end it",
			control.ErrUnavailable, f.giver.PID)
	}
	if left := f.at.Add(givePause).Sub(now); left > 0 {
		return fmt.Errorf("%w: the last hand-over, to process %d, failed (see the log); try again in %s",
			control.ErrUnavailable, f.giver.PID, max(left, time.Second).Round(time.Second))
	}
	return nil
}

// give stops everything at a boundary, and offers it. After an error it continues.
func (d *daemon) give(g *handover.Giver) error {
	within, cancel := context.WithTimeout(d.running, settleLimit)
	defer cancel()
	if err := d.fleet.Settle(within); err != nil {
		g.Withdraw(err)
		return err
	}
	d.pauseServers() // first, so that no client sees what has stopped
	w := capsule.NewWriter()
	defer w.Close()
	p, limit, err := d.fleet.Park(within)
	if err == nil {
		err = d.export(p, w)
	}
	if err == nil {
		err = g.Offer(w, limit)
	}
	if err != nil {
		p.Resume()
		d.resumeServers()
		g.Withdraw(err)
		d.lastGive = failedGive{g, time.Now()}
		return err
	}
	d.given.Store(true)
	d.control.Leave()
	p.Leave()
	return nil
}

func (d *daemon) pauseServers() {
	var both sync.WaitGroup
	both.Go(d.control.Pause)
	if d.metrics != nil {
		both.Go(d.metrics.Pause)
	}
	both.Wait()
}

func (d *daemon) resumeServers() {
	d.control.Resume()
	if d.metrics != nil {
		d.metrics.Resume()
	}
}

// export puts everything that was parked into a capsule.
func (d *daemon) export(p *fleet.Parked, w *capsule.Writer) error {
	h := handed{Suspended: d.fleet.Resting.Load(), Journal: d.journal.Since(0), Systemd: systemd.Export()}
	h.Config, h.Left = d.current.Works()
	w.Put("daemon", h)
	d.control.Export(w)
	if d.metrics != nil {
		d.metrics.Export(w)
	}
	d.inhibitor.Export(w)
	return p.Export(w)
}
