package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

// minPingInterval is the shortest interval: a peer answers 1000 requests a second in all.
const minPingInterval = 10 * time.Millisecond

// pinger pings one peer.
type pinger struct {
	socket   string
	request  control.PingRequest
	count    int
	interval time.Duration
	out      io.Writer
}

func pingCommand() *cobra.Command {
	var p pinger
	var timeout time.Duration
	var sweep bool
	cmd := &cobra.Command{
		Use:   "ping TARGET",
		Short: "Measure the path to a peer below IP",
		Long: "Send echo requests to a peer, by IP address, or by the GID or MAC that 'ipoibd status -v'\n" +
			"shows, and print round trips and losses. The requests use the same queue pair, peer table\n" +
			"and path as IP, but bypass the kernel's IP stack and firewall on the interface. Only ipoibd\n" +
			"answers them.\n\n" +
			"--sweep finds the largest packet that reaches the peer and comes back. The command fails\n" +
			"if no answer arrives at all.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("ping takes one IP address, GID or MAC, as in 'ipoibd ping 10.0.0.2'")
			}
			switch {
			case p.count < 0:
				return fmt.Errorf("--count: %d is negative", p.count)
			case p.interval < minPingInterval:
				return fmt.Errorf("--interval: %s is less than %s", p.interval, minPingInterval)
			case timeout <= 0 || timeout > control.MaxPingTimeout:
				return fmt.Errorf("--timeout: %s must be above 0 and at most %s", timeout, control.MaxPingTimeout)
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			p.socket, p.out = socket(cmd), cmd.OutOrStdout()
			p.request.Target, p.request.Timeout = args[0], journal.Seconds(timeout)
			if sweep {
				return p.sweep(ctx)
			}
			return p.ping(ctx)
		},
	}
	bindControl(cmd)
	bindName(cmd, &p.request.Interface, "interface", "I", "interface to send from (default: the only one)")
	cmd.Flags().IntVarP(&p.count, "count", "c", 5,
		"number of requests, 0: until interrupted; with --sweep, the number for each size")
	p.interval, timeout = time.Second, 2*time.Second
	cmd.Flags().VarP((*interval)(&p.interval), "interval", "i",
		"time between two requests; a number without a unit is in seconds")
	cmd.Flags().VarP((*interval)(&timeout), "timeout", "W",
		"how long to wait for an answer; a number without a unit is in seconds")
	cmd.Flags().IntVarP(&p.request.Size, "size", "s", 56,
		"size of a request in bytes, from 12 to the MTU; it corresponds to the size of an IP packet")
	cmd.Flags().BoolVar(&sweep, "sweep", false, "try sizes up to the MTU, without pauses")
	return cmd
}

// interval is a flag with a duration, such as 200ms; like ping(8), it also takes seconds, such as 0.2.
type interval time.Duration

func (i *interval) String() string { return time.Duration(*i).String() }

// Type implements pflag.Value.
func (*interval) Type() string { return "duration" }

// Set implements pflag.Value.
func (i *interval) Set(text string) error {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	*i = interval(d)
	return err
}

// results are the outcomes of requests.
type results struct {
	sent  int
	trips []time.Duration // of those that were answered
}

// once sends one request and returns the answer, or nil if there was none.
func (p *pinger) once(ctx context.Context, size int, r *results) (*report.Echo, error) {
	q := p.request
	q.Size = size
	if err := control.Post(ctx, p.socket, &q); err != nil {
		return nil, err
	}
	p.request.Interface = q.Interface // which the daemon has filled in
	r.sent++
	if q.Reply != nil {
		r.trips = append(r.trips, time.Duration(q.Reply.RoundTrip).Round(time.Microsecond))
	}
	return q.Reply, nil
}

// ping sends requests of one size, prints each outcome and a summary.
func (p *pinger) ping(ctx context.Context) error {
	var r results
	for n := 1; p.count == 0 || n <= p.count; n++ {
		next := time.Now().Add(p.interval)
		reply, err := p.once(ctx, p.request.Size, &r)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return err
		case reply == nil:
			terminal.Fprintf(p.out, "request %d: no answer within %s\n", n, p.request.Timeout)
		default:
			terminal.Fprintf(p.out, "request %d: %d bytes from %s, QP %s, in %s\n",
				n, p.request.Size, reply.GID, reply.QPN, time.Duration(reply.RoundTrip).Round(time.Microsecond))
		}
		if n != p.count {
			pause(ctx, time.Until(next))
		}
		if ctx.Err() != nil {
			break
		}
	}
	terminal.Fprintf(p.out, "%s: %s\n", p.request.Target, r)
	return r.err()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// sweep sends requests of growing sizes. If large ones are lost, it finds the largest size that
// is answered.
func (p *pinger) sweep(ctx context.Context) error {
	var first results
	if _, err := p.once(ctx, p.request.Size, &first); err != nil { // also resolves the address and the interface
		return err
	}
	s, err := control.GetStatus(ctx, p.socket)
	if err != nil {
		return err
	}
	mtu := 0
	for i := range s.Interfaces {
		if s.Interfaces[i].Name == p.request.Interface {
			mtu = s.Interfaces[i].MTU
		}
	}
	try := func(size int) (answered bool, err error) {
		var r results
		for range max(p.count, 1) {
			if _, err := p.once(ctx, size, &r); err != nil {
				return false, err
			}
		}
		terminal.Fprintf(p.out, "%5d bytes: %s\n", size, r)
		return len(r.trips) > 0, nil
	}
	passes, fails := 0, 0
	for _, size := range sizes(mtu) {
		answered, err := try(size)
		if err != nil {
			return err
		}
		if !answered {
			fails = size
			break
		}
		passes = size
	}
	if passes == 0 {
		return fmt.Errorf("%s: no answer to a packet of any size; see 'ipoibd status -v' on both hosts",
			p.request.Target)
	}
	for fails-passes > 1 {
		size := passes + (fails-passes)/2
		answered, err := try(size)
		if err != nil {
			return err
		}
		if answered {
			passes = size
		} else {
			fails = size
		}
	}
	if fails == 0 {
		terminal.Fprintf(p.out, "%s: packets of all sizes up to the MTU of %d pass\n", p.request.Target, mtu)
		return nil
	}
	return fmt.Errorf("%s: packets of up to %d bytes pass, larger ones do not, and the MTU of %s is %d: "+
		"set it to %d, or raise the MTU of the underlay",
		p.request.Target, passes, p.request.Interface, mtu, passes)
}

// sizes returns the sizes of a sweep.
func sizes(mtu int) (list []int) {
	for size := 64; size < mtu; size *= 2 {
		list = append(list, size)
	}
	return append(list, mtu)
}

func (r results) String() string {
	lost := 100 * (r.sent - len(r.trips)) / max(r.sent, 1)
	text := fmt.Sprintf("%d sent, %d answered, %d %% lost", r.sent, len(r.trips), lost)
	if n := len(r.trips); n > 0 {
		sorted := slices.Sorted(slices.Values(r.trips))
		text += fmt.Sprintf("; round trip min %s, median %s, max %s", sorted[0], sorted[n/2], sorted[n-1])
	}
	return text
}

// err returns an error if there was no answer at all.
func (r results) err() error {
	if r.sent > 0 && len(r.trips) == 0 {
		return errors.New("no answer: the peer does not exist, does not run ipoibd, or the path is broken; " +
			"see 'ipoibd status -v' on both hosts")
	}
	return nil
}
