package cni

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
)

const (
	// addLimit bounds ADD, without what undoes it. An interface usually takes less than a second,
	// one with IPv6 addresses two, while duplicates are looked for.
	addLimit = 30 * time.Second
	// otherLimit bounds the other commands, and what undoes an ADD.
	otherLimit = time.Minute
	// busyPause and busyJitter are the pause before the daemon is asked again.
	busyPause  = 50 * time.Millisecond
	busyJitter = 200 * time.Millisecond
)

var errSlow = fmt.Errorf("not complete within %v; see 'ipoibd status' and 'ipoibd events'", addLimit)

// Main runs the command that the environment names, and exits (see [skel.PluginMainFuncs]).
func Main(about string) {
	commands := skel.CNIFuncs{
		Add: command(addLimit, errSlow, add), Del: command(otherLimit, nil, del), GC: command(otherLimit, nil, gc),
		Check: command(otherLimit, nil, check), Status: command(otherLimit, nil, status),
	}
	skel.PluginMainFuncs(commands, version.PluginSupports("0.4.0", "1.0.0", "1.1.0"), about)
}

// command returns a command that ends within a limit, with the cause slow (nil: the usual one), and gives its errors
// the codes of the specification.
func command(
	limit time.Duration, slow error, do func(context.Context, *conf, *skel.CmdArgs) error,
) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		ctx, cancel := context.WithTimeoutCause(context.Background(), limit, slow)
		defer cancel()
		c, err := parseConf(args.StdinData)
		if err == nil {
			err = do(ctx, c, args)
		}
		if err == nil {
			return nil
		}
		code := types.ErrInternal
		known, ok := errors.AsType[*types.Error](err)
		switch {
		case ok:
			code = known.Code
		case errors.Is(err, control.ErrMistake):
			code = types.ErrInvalidNetworkConfig
		case errors.Is(err, control.ErrNotRunning), errors.Is(err, control.ErrHangs),
			errors.Is(err, control.ErrUnavailable):
			code = types.ErrTryAgainLater
		}
		return types.NewError(code, err.Error(), "")
	}
}

func add(ctx context.Context, c *conf, args *skel.CmdArgs) error {
	if !validIfName(args.IfName) {
		return types.NewError(types.ErrInvalidEnvironmentVariables,
			"CNI_IFNAME is not a valid interface name", fmt.Sprintf("%q", args.IfName))
	}
	pod, err := openPod(args.Netns)
	if err != nil {
		return err
	}
	defer pod.close()
	ipam, err := openIPAM(ctx, c)
	if err != nil {
		return err
	}
	given, err := ipam.add(ctx)
	if err != nil {
		return err
	}
	a := attachment{c.Name, args.ContainerID, args.IfName}
	result, err := attach(ctx, c, a, args.Netns, pod, given)
	if err != nil {
		undo, cancel := context.WithTimeout(context.Background(), otherLimit)
		defer cancel()
		left := detach(undo, c, a, args.Netns)
		if left == nil { // else a DEL releases the addresses
			left = ipam.del(undo)
		}
		if left != nil {
			return fmt.Errorf("%w; the ADD could not be undone: %w", err, left)
		}
		return err
	}
	return types.PrintResult(result, c.CNIVersion)
}

// attach adds the interface, and waits until it is complete.
func attach(
	ctx context.Context, c *conf, a attachment, netns string, pod *pod, given *current.Result,
) (*current.Result, error) {
	l, err := layoutOf(given, anyInterface)
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %s: %w", c.IPAM.Type, err)
	}
	definition, err := define(c, a, stable(netns), l)
	if err != nil {
		return nil, err
	}
	if err := order(ctx, c, &control.AddRequest{RawMessage: definition, Namespace: pod.ns}); err != nil {
		return nil, err
	}
	seen, err := pod.await(ctx, a.ifName, l)
	if err != nil {
		return nil, err
	}
	if err := awaitServed(ctx, c, a, stable(netns)); err != nil {
		return nil, err
	}
	return resultOf(given, a, netns, seen), nil
}

// stable returns the path of a namespace without symbolic links, such as /var/run, which a daemon in
// a container may not have. The links in /proc lead to no path, and stay.
func stable(netns string) string {
	if path, err := filepath.EvalSymlinks(netns); err == nil {
		return path
	}
	return netns
}

// order has the daemon carry out a request, and waits while the daemon has too many.
func order(ctx context.Context, c *conf, q control.Request) error {
	for {
		err := control.Post(ctx, c.Control, q)
		if !errors.Is(err, control.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyPause + rand.N(busyJitter)):
		}
	}
}

// detach removes the interface of an attachment from the daemon. It also deletes the interface that a
// daemon that no longer runs has left in the pod.
func detach(ctx context.Context, c *conf, a attachment, netns string) error {
	q := &control.RemoveRequest{Interface: a.name()}
	err := order(ctx, c, q)
	answered := !errors.Is(err, control.ErrNotRunning)
	switch {
	case err == nil:
		err = q.Err()
	case errors.Is(err, control.ErrNotFound), !answered:
		err = nil
	}
	if err != nil || netns == "" || isOwn(netns) {
		return err
	}
	err = link.DeleteIn(netns, a.ifName)
	if answered && errors.Is(err, link.ErrOwned) {
		return nil // another attachment's
	}
	if errors.Is(err, link.ErrNotFound) || errors.Is(err, link.ErrNoNamespace) ||
		errors.Is(err, link.ErrNameTaken) || errors.Is(err, link.ErrSpec) {
		return nil // gone, or it never was ours
	}
	return err
}

func del(ctx context.Context, c *conf, args *skel.CmdArgs) error {
	if err := detach(ctx, c, attachment{c.Name, args.ContainerID, args.IfName}, args.Netns); err != nil {
		return err
	}
	ipam, err := openIPAM(ctx, c)
	if err != nil {
		return err
	}
	return ipam.del(ctx)
}

func check(ctx context.Context, c *conf, args *skel.CmdArgs) error {
	prev, err := previous(c)
	if err != nil {
		return err
	}
	a := attachment{c.Name, args.ContainerID, args.IfName}
	mac, l, err := expect(prev, a, args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "prevResult", err.Error())
	}
	pod, err := openPod(args.Netns)
	if err != nil {
		return err
	}
	defer pod.close()
	s, err := control.GetStatus(ctx, c.Control)
	if err != nil { // without a daemon, the pod has no carrier
		return err
	}
	seen, err := pod.look(a.ifName)
	if err != nil {
		return err
	}
	if missing := seen.lacks(l); missing != nil {
		return fmt.Errorf("%s lacks %s", a.ifName, strings.Join(missing, ", "))
	}
	if mac != "" && mac != seen.mac {
		return fmt.Errorf("%s has the MAC %s, not %.40q", a.ifName, seen.mac, mac)
	}
	if err := serves(s, a, stable(args.Netns)); err != nil {
		return err
	}
	ipam, err := openIPAM(ctx, c)
	if err != nil {
		return err
	}
	return ipam.check(ctx)
}

// previous returns the result of the earlier ADD.
func previous(c *conf) (*current.Result, error) {
	if c.RawPrevResult == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing", "")
	}
	parsed := c.PluginConf
	if err := version.ParsePrevResult(&parsed); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read", err.Error())
	}
	return current.NewResultFromResult(parsed.PrevResult)
}

// serves returns an error unless the daemon serves an attachment.
func serves(s *report.Status, a attachment, netns string) error {
	i := slices.IndexFunc(s.Interfaces, func(f report.Interface) bool { return f.Name == a.name() })
	if i < 0 {
		return fmt.Errorf("the daemon does not know the interface %s", a.name())
	}
	if f := &s.Interfaces[i]; f.Owner != a.owner() || f.Netns != netns {
		return fmt.Errorf("the daemon's interface %s belongs to %q in %s", f.Name, f.Owner, f.Netns)
	}
	for _, u := range diagnose.NotReady(s) {
		if u.Interface == a.name() {
			return u
		}
	}
	return nil
}

// awaitServed waits until the daemon's status shows that the attachment is ready. The status may lag behind
// the kernel for a moment, and a CHECK right after the ADD compares the two.
func awaitServed(ctx context.Context, c *conf, a attachment, netns string) error {
	for {
		s, err := control.GetStatus(ctx, c.Control)
		if err != nil {
			return err
		}
		missing := serves(s, a, netns)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", missing, context.Cause(ctx))
		case <-time.After(busyPause + rand.N(busyJitter)):
		}
	}
}

func status(ctx context.Context, c *conf, _ *skel.CmdArgs) error {
	s, err := control.GetStatus(ctx, c.Control)
	if err != nil { // without a daemon, no pod has a carrier
		return types.NewError(types.ErrLimitedConnectivity, "the daemon does not answer", err.Error())
	}
	if err := available(s, c.Device); err != nil {
		return err
	}
	ipam, err := openIPAM(ctx, c)
	if err != nil {
		return err
	}
	return ipam.status(ctx)
}

// available returns an error unless the daemon can serve more interfaces on a device (empty: the only
// one).
func available(s *report.Status, device string) error {
	i := slices.IndexFunc(s.Devices, func(d report.Device) bool { return d.Name == device })
	if device == "" && len(s.Devices) == 1 {
		i = 0
	}
	if i < 0 {
		return types.NewError(types.ErrPluginNotAvailable, "the daemon has no such device", fmt.Sprintf("%q", device))
	}
	d := &s.Devices[i]
	switch active := func(p report.Port) bool { return p.State == hca.PortActive }; {
	case d.State != report.DeviceOpen:
		return types.NewError(types.ErrLimitedConnectivity,
			fmt.Sprintf("device %s is %s", d.Name, d.State), d.LastError)
	case !slices.ContainsFunc(d.Ports, active):
		return types.NewError(types.ErrLimitedConnectivity,
			fmt.Sprintf("device %s has no active port", d.Name), d.Underlay)
	}
	return nil
}

func gc(ctx context.Context, c *conf, _ *skel.CmdArgs) error {
	left := collect(ctx, c)
	if left != nil { // addresses of interfaces that are still there must not be released
		return left
	}
	ipam, err := openIPAM(ctx, c)
	if err != nil {
		return err
	}
	return ipam.gc(ctx)
}

// collect removes the interfaces whose attachments are no longer valid.
func collect(ctx context.Context, c *conf) (left error) {
	s, err := control.GetStatus(ctx, c.Control)
	if err != nil {
		return err
	}
	for _, name := range garbage(s.Interfaces, c.Name, c.ValidAttachments) {
		q := &control.RemoveRequest{Interface: name}
		if err := order(ctx, c, q); !errors.Is(err, control.ErrNotFound) {
			left = errors.Join(left, err, q.Err())
		}
	}
	return left
}
