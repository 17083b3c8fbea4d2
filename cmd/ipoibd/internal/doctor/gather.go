package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link"
	"ipoibd/link/kernel"
)

// Query says what to examine.
type Query struct {
	Version          string         // of this program
	Config           *config.Config // of a start; nil if there is none, and Mistake says why
	Mistake          error
	UnknownVariables []string
	Control          string        // path of the control socket
	Watch            time.Duration // how long to watch the counters of a running daemon
	OpenRDMA         func(name string) (hca.Device, error)
}

// maxListedByDaemon bounds the devices, and the interfaces, of a status that is examined: more than a
// host can have, few enough to compare each with each.
const maxListedByDaemon = 4096

// connectLimit bounds the connection to the control socket. The limits of requests are those of
// package control, and those of other programs are in probe.go.
const connectLimit = time.Second

// Gather collects the facts. It changes nothing; without a daemon, it binds the UDP port for a
// moment, as 'ipoibd devices' does. The error says what could not be examined. It takes a few
// seconds and the time to watch; if the daemon hangs, 6 s.
func Gather(ctx context.Context, q Query) (diagnose.Facts, error) {
	g := gatherer{Facts: diagnose.Facts{Version: q.Version, Mistake: q.Mistake, UnknownVariables: q.UnknownVariables}}
	g.Socket = examineSocket(ctx, q.Control)
	g.Service = examineService(ctx, q.Control)
	var neighErr, netErr, processErr error
	g.NeighboursEarlier, neighErr = neighbourTables()
	before, dropErr := unforwarded()
	err := g.ask(ctx, q)
	if dropErr == nil {
		g.Unforwarded, dropErr = unforwarded()
		g.Unforwarded -= min(before, g.Unforwarded)
	}
	if neighErr == nil {
		g.Neighbours, neighErr = neighbourTables()
	}
	g.Netdevs, netErr = netdevs()
	g.Process, processErr = examineProcess(g.Socket.PID)
	if g.Socket.PID != 0 {
		processErr = nil // it may be in another PID namespace, or have ended
	}
	if g.Status == nil && q.Config != nil {
		g.Devices, g.Interfaces = fromConfig(q.Config)
	}
	if !g.Started() {
		g.Control = checkControl(q.Control)
		g.Tun = link.CheckTun()
		g.NoTun = errors.Is(g.Tun, link.ErrNoTun)
		g.tryStart(q)
	}
	if g.Status != nil {
		g.Devices, g.Interfaces = fromStatus(g.Status)
		g.ClockStep = clockStep(g.Socket.PID, g.Status.Started)
		g.findHolders()
	}
	g.examineFirewall(ctx)
	return g.Facts, errors.Join(err, neighErr, dropErr, netErr, processErr)
}

// gatherer collects the facts.
type gatherer struct{ diagnose.Facts }

// examineSocket looks at the control socket, and connects to it.
func examineSocket(ctx context.Context, path string) diagnose.Socket {
	s := diagnose.Socket{Path: path}
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return s
	case err != nil:
		s.State, s.Err = diagnose.SocketDenied, err
		return s
	case st.Mode().Type() != fs.ModeSocket:
		s.State, s.Err = diagnose.SocketBlocked, fmt.Errorf("%s is not a socket, but has the mode %s", path, st.Mode())
		return s
	}
	conn, err := (&net.Dialer{Timeout: connectLimit}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		s.State, s.PID = diagnose.SocketAnswers, listener(conn)
		_ = conn.Close()
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		s.State, s.Err = diagnose.SocketStale, fmt.Errorf("no process listens on %s", path)
	case errors.Is(err, fs.ErrPermission):
		s.State, s.Err = diagnose.SocketDenied, err
	default: // its queue of connections is full
		s.State, s.Err = diagnose.SocketHangs, err
	}
	return s
}

// listener returns the PID of the process at the other end, or 0 if it is in another PID namespace.
func listener(conn net.Conn) (pid int) {
	peer, err := kernel.Peer(conn.(syscall.Conn))
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// ask requests the status twice, with the time to watch in between.
func (g *gatherer) ask(ctx context.Context, q Query) error {
	if g.Socket.State != diagnose.SocketAnswers {
		return nil
	}
	first, err := control.GetStatus(ctx, q.Control)
	switch {
	case err != nil:
	case len(first.Interfaces) > maxListedByDaemon || len(first.Devices) > maxListedByDaemon:
		err = fmt.Errorf("its status has %d devices and %d interfaces, more than any daemon has",
			len(first.Devices), len(first.Interfaces))
	case first.SchemaVersion != report.SchemaVersion:
		err = fmt.Errorf("its status has the schema version %d, but this program knows only %d",
			first.SchemaVersion, report.SchemaVersion)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, control.ErrHangs), errors.Is(err, context.DeadlineExceeded):
		// There is no answer, or one that never ends.
		g.Socket.State, g.Socket.Err, g.Socket.Stopped = diagnose.SocketHangs, err, isStopped(g.Socket.PID)
		return nil
	case errors.Is(err, fs.ErrPermission):
		g.Socket.State, g.Socket.Err = diagnose.SocketDenied, err
		return nil
	case err != nil:
		g.Socket.State, g.Socket.Err = diagnose.SocketGarbage, err
		return nil
	}
	g.Status = first
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(q.Watch):
	}
	second, err := control.GetStatus(ctx, q.Control)
	if err != nil {
		return fmt.Errorf("the daemon no longer answers: %w", err)
	}
	g.Earlier, g.Status, g.Watched = first, second, second.Time.Sub(first.Time).Round(time.Millisecond)
	return nil
}

// tryStart finds out what a start would find.
func (g *gatherer) tryStart(q Query) {
	for i := range g.Interfaces {
		g.Interfaces[i].Claim = claim(link.Available(g.Interfaces[i].Name))
	}
	for i := range g.Devices {
		d := &g.Devices[i]
		if !d.Software {
			inventory(d, q)
			continue
		}
		if d.Underlay == "" {
			d.Underlay, d.Unclear = udp.DefaultNetdev()
		}
		if n := g.Netdev(d.Underlay); n != nil && !n.Loopback {
			d.Taken = takenPort(backend.Local(q.OpenRDMA, d.Underlay).Bind(d.Underlay))
		}
	}
}

// inventory looks a real HCA up in the list of 'ipoibd devices'.
func inventory(d *diagnose.Device, q Query) {
	s := backend.Local(q.OpenRDMA, "")
	s.Netdev = func() (string, error) { return "", hca.ErrNoDevice } // leaves the software HCA alone
	entries, err := s.Take()
	if err != nil {
		d.Trouble = append(d.Trouble, err.Error())
	}
	d.Missing = err == nil
	for _, e := range entries {
		if e.Kind == backend.KindSoftware {
			continue
		}
		d.Present = append(d.Present, e.Name)
		if e.Name != d.HCA {
			continue
		}
		d.Missing = false
		d.Trouble = append(d.Trouble, e.Trouble...)
		for _, p := range e.Ports {
			for _, t := range p.Trouble {
				d.Trouble = append(d.Trouble, fmt.Sprintf("port %d: %s", p.Num, t))
			}
		}
	}
}

// findHolders finds the other processes with a queue of an interface whose daemon has noticed one.
func (g *gatherer) findHolders() {
	for i := range g.Status.Interfaces {
		if s := &g.Status.Interfaces[i]; s.Reason == report.ReasonForeign {
			g.Interfaces[i].Holders = tapHolders(s.Name, g.Socket.PID)
		}
	}
}
