package sa

import (
	"slices"
	"time"

	"ipoibd/hca"
)

// port is what is known of the port.
type port struct {
	view     Port
	reported bool // Reregister or SMChange arrived while the port was not usable
}

// trouble returns why no request can be sent, or ReasonNone.
func (p *port) trouble() Reason {
	switch {
	case p.view.State != hca.PortActive:
		return ReasonPortNotActive
	case p.view.SMLID == 0:
		return ReasonNoSM
	}
	return ReasonNone
}

func (p *port) usable() bool { return p.trouble() == ReasonNone }

// has reports whether the partition is in the port's table, as a full or limited member.
func (p *port) has(key hca.PKey) bool {
	return len(p.view.PKeys) == 0 || slices.ContainsFunc(p.view.PKeys, func(k hca.PKey) bool {
		return k|hca.PKeyMembership == key|hca.PKeyMembership
	})
}

// view applies a new view of the port:
//
//	changed                   | memberships          | paths          | requests
//	not active, or no SM      | end, and are wanted  | forgotten      | given up
//	active again              | begin                | -              | begin
//	the GID                   | begin again          | forgotten      | begin again
//	the LID                   | set again            | forgotten      | go on
//	the SM LID                | set again            | stale, in use  | begin again
//	P_Keys                    | begin or wait        | -              | -
func (c *Client) view(now Port) {
	before := c.port.view
	now.PKeys = slices.Clone(now.PKeys)
	wasUsable := c.port.usable()
	c.port.view = now
	switch {
	case !c.port.usable():
		c.becomeUnusable()
	case !wasUsable:
		c.becomeUsable()
	case now.GID != before.GID:
		c.service.reset()
		c.service.ask()
		c.groups.reset()
		c.paths.restart()
	default:
		if now.SMLID != before.SMLID {
			c.requests.startOver()
			c.light()
		}
		if now.LID != before.LID {
			c.normal()
		}
		c.groups.settleAll(0)
	}
}

func (c *Client) goDown() {
	c.port.view.State = hca.PortDown
	c.becomeUnusable()
}

// becomeUnusable ends everything that needs the SA. The subnet manager drops the memberships of a port that is down.
func (c *Client) becomeUnusable() {
	c.service.reset()
	c.groups.reset()
	c.paths.reset(c.port.trouble())
}

func (c *Client) becomeUsable() {
	spread := time.Duration(0)
	if c.port.reported {
		spread = rejoinSpread
	}
	c.port.reported = false
	c.service.ask()
	c.groups.settleAll(spread)
}

// light handles an event after which the subnet manager may have forgotten the memberships and changed paths.
func (c *Client) light() {
	if !c.port.usable() {
		c.port.reported = true
		return
	}
	c.service.ask()
	c.groups.again(0, rejoinSpread)
	c.paths.epoch++
}

// normal handles an event after which paths that begin here no longer lead anywhere.
func (c *Client) normal() {
	if c.port.usable() {
		c.groups.again(0, rejoinSpread)
		c.paths.restart()
	}
}
