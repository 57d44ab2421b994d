# Dsv3Test.pm
#	What the TAP tests share: servers that preload dsv3, queries in the background, and what to look at.
package Dsv3Test;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run qw(start finish pump timeout kill_kill);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(a_second dsv3_node start_query end_query wait_for wait_state health engine_pid supervisor_pid alive live_requests
  query_fails log_has hostile_engine start_again);

# How long anything here may take before it counts as hanging.
our $PATIENCE = 30;

# A running server with the extension in database postgres. Settings as in postgresql.conf; model_path is the built-in
# test model unless given; engine_path is that of the build. start => 0: not started; extension => 0: not created.
sub dsv3_node
{
	my ($name, %settings) = @_;
	my $start = delete $settings{start} // 1;
	my $extension = delete $settings{extension} // 1;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %all = (
		'shared_preload_libraries' => "'dsv3'",
		'dsv3.model_path' => "'test:'",
		'dsv3.engine_restart_delay' => "'20ms'",
		'dsv3.engine_restart_delay_max' => "'100ms'",
		'log_error_verbosity' => 'verbose',
		'restart_after_crash' => 'on',
		%settings);

	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf', join("\n", map { "$_ = $all{$_}" } grep { defined $all{$_} } sort keys %all) . "\n");
	return $node unless $start;
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION dsv3') if $extension;
	return $node;
}

# The misbehaving engine, as value of dsv3.engine_path.
sub hostile_engine
{
	return "'$ENV{DSV3_HOSTILE}'";
}

# A query in a psql of its own.
sub start_query
{
	my ($node, $sql, $database) = @_;
	my %query = (out => '', err => '', in => '');

	$query{handle} = start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database // 'postgres'), '-c', $sql ],
		'<', \$query{in}, '>', \$query{out}, '2>', \$query{err}, timeout(4 * $PATIENCE));
	return \%query;
}

# Wait for it; returns what it printed and its errors.
sub end_query
{
	my ($query) = @_;

	finish($query->{handle});
	chomp $query->{out};
	return ($query->{out}, $query->{err});
}

# Wait until the condition holds; false, with a message, when it does not within the seconds given.
sub wait_for
{
	my ($what, $condition, $patience) = @_;
	my $end = time() + ($patience // $PATIENCE);

	while (time() < $end)
	{
		return 1 if $condition->();
		sleep(0.02);
	}
	diag("waited in vain: $what");
	return 0;
}

sub health
{
	my ($node, $column) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM dsv3_health()");
}

sub wait_state
{
	my ($node, $state) = @_;
	return wait_for("engine $state", sub { health($node, 'state') eq $state });
}

sub engine_pid
{
	my ($node) = @_;
	return health($node, 'engine_pid');
}

sub supervisor_pid
{
	my ($node) = @_;
	return health($node, 'supervisor_pid');
}

# Is there such a process (that is more than a zombie)?
sub alive
{
	my ($pid) = @_;

	open(my $stat, '<', "/proc/$pid/stat") or return 0;
	my $line = <$stat> // '';
	close($stat);
	return $line =~ /\) [^ZX]/ ? 1 : 0;
}

sub live_requests
{
	my ($node, $where) = @_;
	return $node->safe_psql('postgres', 'SELECT count(*) FROM dsv3_activity' . ($where ? " WHERE $where" : ''));
}

# The query fails with that SQLSTATE, message and hint.
sub query_fails
{
	my ($node, $sql, $sqlstate, $message, $hint, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSET statement_timeout = '20s';\n$sql");

	subtest $name => sub {
		like($err, qr/ERROR:  \Q$sqlstate\E: /, 'SQLSTATE');
		like($err, $message, 'message');
		like($err, qr/HINT:  .*$hint/, 'hint') if defined $hint;
	};
	return;
}

# What one second of this machine is now: more when other work waits for its processors too.
sub a_second
{
	open(my $file, '<', '/proc/loadavg') or return 1;
	my ($load) = split ' ', <$file>;
	close($file);
	my $cores = () = slurp_file('/proc/cpuinfo') =~ /^processor\b/mg;
	return $load > $cores ? $load / $cores : 1;
}

# Does the log have it, from that position on?
sub log_has
{
	my ($node, $pattern, $from) = @_;
	my $log = slurp_file($node->logfile, $from // 0);
	return $log =~ $pattern;
}

# Start after a stop that may still be under way (a postmaster that was killed leaves its children for a moment).
sub start_again
{
	my ($node) = @_;
	return wait_for(
		'the server starts again',
		sub {
			return 1 if $node->start(fail_ok => 1);
			$node->stop('fast', fail_ok => 1);    # forgets the process id that the failed start has read from the old file
			return 0;
		});
}

1;
