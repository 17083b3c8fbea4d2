package link

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
)

// claimTimeout bounds how long Open and Delete try to get an interface that another
// process holds: the queue of a killed process is detached shortly after it dies, and two
// processes that start at the same time may each see the other.
const (
	claimTimeout = time.Second
	claimPause   = 5 * time.Millisecond
	claimJitter  = 20 * time.Millisecond
)

// temporaryPrefix begins the name of an interface that is not complete yet.
const temporaryPrefix = "ipoibd-"

// Open creates the interface of a specification, down, or adopts ipoibd's interface with
// that name (adopted is true) and keeps the host's settings. In both cases the interface
// has no carrier, and belongs to the user and group of this process. Open may block for
// a second while the interface is in use by another process. Errors: ErrSpec, ErrNameTaken,
// ErrOwned (an *OwnedError), ErrNoTun, ErrPermission, ErrNoNamespace; ErrNotFound if the
// specification asks for an existing interface.
func Open(spec Spec) (t *TAP, adopted bool, err error) {
	if err := spec.Validate(); err != nil {
		return nil, false, err
	}
	c := claim{spec: spec, make: !spec.Existing}
	t, err = c.runThere()
	return t, err == nil && !c.made, err
}

// Available returns nil if Open would create or adopt an interface of this name, as far as that
// can be seen without attaching to it. Errors: ErrSpec, ErrNameTaken, ErrOwned (an *OwnedError).
func Available(name string) error {
	if err := validName(name); err != nil {
		return err
	}
	r, err := openRtnl()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer r.close()
	found, err := r.byName(name)
	if err != nil || found == nil {
		return err
	}
	return new(claim).check(found, 0)
}

// claim gets an interface for this process alone.
type claim struct {
	rtnl   *rtnl
	spec   Spec
	make   bool // create the interface if it does not exist
	made   bool // this process has created it
	again  bool // another try may succeed
	spoilt bool // another user attached to the interface during its creation
}

// runThere runs in the namespace of the specification.
func (c *claim) runThere() (t *TAP, err error) {
	if c.spec.Netns == "" {
		return c.run()
	}
	ns := c.spec.Namespace
	if ns != nil {
		err = checkPassed(ns, c.spec.Netns)
	} else if ns, err = openNamespace(c.spec.Netns); err == nil {
		defer ns.Close()
	}
	if err != nil {
		return nil, err
	}
	entered := kernel.InNamespace(ns, func() { t, err = c.run() })
	if entered != nil {
		return nil, fmt.Errorf("enter the network namespace %s, which requires CAP_SYS_ADMIN: %w",
			c.spec.Netns, classify(entered))
	}
	return t, err
}

// run tries until no other process has a queue of the interface, or claimTimeout has
// passed. The pauses between tries are random, so that one of two processes that detach
// because of each other succeeds.
func (c *claim) run() (t *TAP, err error) {
	if c.rtnl, err = openRtnl(); err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	for end := time.Now().Add(claimTimeout); ; {
		c.again, c.spoilt = false, false
		t, err = c.try()
		if !c.again || time.Now().After(end) {
			break
		}
		if !c.spoilt { // a new try uses a new name, so no pause is needed then
			time.Sleep(claimPause + mathrand.N(claimJitter))
		}
	}
	if err != nil {
		c.rtnl.close()
	}
	return t, err
}

func (c *claim) try() (*TAP, error) {
	if err := c.prepare(); err != nil {
		return nil, err
	}
	t, err := newTAP(c.spec, c.rtnl)
	if err != nil {
		return nil, err
	}
	if err := c.takePossession(t); err != nil { // closing the file detaches the queue
		return nil, errors.Join(err, t.tun.close())
	}
	return t, nil
}

// prepare makes sure that the interface exists, belongs to ipoibd and has no queue.
func (c *claim) prepare() error {
	found, err := c.rtnl.byName(c.spec.Name)
	switch {
	case err != nil:
		return fmt.Errorf("look for %s: %w", c.spec.Name, classify(err))
	case found == nil && !c.make:
		return ErrNotFound
	case found == nil:
		err := c.create()
		c.made = err == nil
		return err
	}
	return c.check(found, 0)
}

// check checks that an interface belongs to ipoibd and has no more queues than this process.
// A TAP without an alias may be one that another process is creating.
func (c *claim) check(l netlink.Link, own int) error {
	if err := checkOurs(l); err != nil {
		c.again = isMultiQueueTAP(l) && l.Attrs().Alias == ""
		return err
	}
	if queues(l) > own {
		c.again = true
		return &OwnedError{holder(l)}
	}
	return nil
}

// takePossession sets up an interface to which this process has just attached a queue,
// unless another process has one. Every process counts the queues after it has attached
// its own, so at least the last one sees the others. A process that sees another one
// returns an error before it changes anything.
func (c *claim) takePossession(t *TAP) error {
	err := t.dev.visit(func(r *rtnl, l netlink.Link) error {
		if err := c.check(l, 1); err != nil {
			return err
		}
		// The kernel uses the flags of the first queue. If they are not ours, another
		// queue was the first and has been closed since.
		if l.(*netlink.Tuntap).Flags&netlink.TUNTAP_VNET_HDR == 0 {
			c.again = true
			return &OwnedError{holder(l)}
		}
		if !isEthernet(l) {
			if err := t.tun.control(setEthernet); err != nil {
				return err
			}
		}
		sign(r, l)
		return t.lens.fit(r, l, 0)
	})
	if err != nil {
		return err
	}
	err = t.tun.control(func(fd int) (err error) {
		if t.mac, err = queueMAC(fd); err != nil {
			return err
		}
		// These properties belong to the device, not to the queue, so any other queue can
		// have changed them. Setting one to its current value does nothing and, except for the
		// owner, sends no netlink message (drivers/net/tun.c).
		return errors.Join(
			setOwner(fd),
			setPersistent(fd),
			setUnreported(fd, 0, NoPrograms),
			setHeaderLen(fd),
			setCarrier(fd, false),
		)
	})
	if err != nil {
		return fmt.Errorf("set up %s: %w", c.spec.Name, classify(err))
	}
	for len(t.tun.queues) < c.spec.Queues {
		if err := t.tun.attach(); err != nil {
			return fmt.Errorf("attach queue %d of %s: %w", len(t.tun.queues), c.spec.Name, err)
		}
	}
	if len(t.tun.queues) > 1 { // a queue that another process attached in between would get frames
		return t.dev.visit(func(_ *rtnl, l netlink.Link) error { return c.check(l, len(t.tun.queues)) })
	}
	return nil
}

// create creates the interface. Until it has an owner, any user may attach a queue and
// change the owner and the link type. So create uses a name that no one can guess, and
// deletes the interface if another user attached anyway. The interface is complete when it
// gets its real name, and only then becomes persistent.
func (c *claim) create() (err error) {
	name := temporaryPrefix + rand.Text()[:unix.IFNAMSIZ-1-len(temporaryPrefix)]
	queue, err := createTAP(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queue.Close()) }()
	l, err := c.rtnl.byName(name)
	if err != nil || l == nil {
		return fmt.Errorf("find %s after its creation: %w", name, errors.Join(ErrNotFound, err))
	}
	if foreign(l, 1) > 0 || !owned(l) || !isEthernet(l) {
		c.again, c.spoilt = true, true
		return errors.Join(&OwnedError{}, c.rtnl.deleteLink(l.Attrs().Index))
	}
	if err := configure(c.rtnl, l.Attrs().Index, c.spec); err != nil {
		c.again = errors.Is(err, unix.EEXIST) // another process has created it in the meantime
		return fmt.Errorf("configure %s: %w", c.spec.Name, classify(err))
	}
	conn, err := queue.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = conn.Control(func(fd uintptr) { setErr = setPersistent(int(fd)) })
	return errors.Join(err, setErr)
}

func configure(r *rtnl, index int, spec Spec) error {
	for _, c := range []struct {
		what string
		attr *nl.RtAttr
	}{
		{"MAC", nl.NewRtAttr(unix.IFLA_ADDRESS, spec.MAC[:])},
		{"MTU", uint32Attr(unix.IFLA_MTU, uint32(spec.MTU))},
		{"transmit queue length", uint32Attr(unix.IFLA_TXQLEN, uint32(spec.queueLens().small))},
		{"alias", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(AliasPrefix))},
		{"name", nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(spec.Name))},
	} {
		if err := r.setLink(index, c.attr); err != nil {
			return fmt.Errorf("set %s: %w", c.what, err)
		}
	}
	return nil
}

// checkOurs returns an error for an interface that cannot be adopted.
func checkOurs(l netlink.Link) error {
	a := l.Attrs()
	if !strings.HasPrefix(a.Alias, AliasPrefix) {
		err := fmt.Errorf("%w: %s is a %s without ipoibd's alias", ErrNameTaken, a.Name, l.Type())
		if isMultiQueueTAP(l) {
			err = fmt.Errorf("%w; if it is ipoibd's, run 'ip link set %s alias %s'", err, a.Name, AliasPrefix)
		}
		return err
	}
	if !isMultiQueueTAP(l) {
		return fmt.Errorf("%w: %s has ipoibd's alias but is a %s, not a multi-queue TAP",
			ErrNameTaken, a.Name, l.Type())
	}
	return nil
}

func isMultiQueueTAP(l netlink.Link) bool {
	tap, ok := l.(*netlink.Tuntap)
	return ok && tap.Mode == netlink.TUNTAP_MODE_TAP && tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0
}

// queues counts the descriptors that are attached to a TAP.
func queues(l netlink.Link) int {
	tap, ok := l.(*netlink.Tuntap)
	if !ok {
		return 0
	}
	return tap.Queues + tap.DisabledQueues
}

// foreign counts the queues of other processes; own is the number of queues of this process.
func foreign(l netlink.Link, own int) int { return max(queues(l)-own, 0) }

// owned reports whether a TAP belongs to this process's user and group.
func owned(l netlink.Link) bool {
	tap, ok := l.(*netlink.Tuntap)
	return ok && tap.Owner == uint32(os.Geteuid()) && tap.Group == uint32(os.Getegid())
}

// isEthernet reports whether a TAP has the link type with which it was created.
func isEthernet(l netlink.Link) bool { return l.Attrs().EncapType == "ether" }

// Delete removes an interface of ipoibd that no process holds. It may block for a second
// while another process holds it. Errors: ErrSpec, ErrNotFound, ErrNameTaken, ErrOwned,
// ErrNoTun, ErrPermission.
func Delete(name string) error { return DeleteIn("", name) }

// DeleteIn is Delete in the network namespace at a path. Errors: ErrNoNamespace, and the errors of Delete.
func DeleteIn(netns, name string) error {
	if err := validName(name); err != nil {
		return err
	}
	c := claim{spec: Spec{Name: name, Netns: netns}}
	t, err := c.runThere()
	if err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return t.Remove()
}
