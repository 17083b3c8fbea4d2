// Package top shows the daemon's interfaces in a terminal while they work: throughput, drops,
// ring depth, peers, recoveries and events, refreshed at an interval.
//
// A [Model] is pure: it gets statuses, events, keys and window sizes as messages of
// charm.land/bubbletea/v2, and returns the lines to draw. Only the commands that it returns call
// the [Source], and they block. Every text that comes from the daemon is escaped, because others
// choose the names of interfaces, devices and processes.
package top
