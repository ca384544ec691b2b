# Prints compile commands (JSON) of single sources for clang-tidy, and lists these sources in FOUND.
# Usage: perl tidy_commands.pl COMPILE_COMMANDS WANTED FOUND    WANTED: absolute paths, one a line; FOUND keeps the order
#
# A source inside a unity source gets that one's command. Left out are precompiled headers, which may not have been built, and
# sources whose generated headers are missing.
use strict;
use warnings;
use JSON::PP;

my ($commands, $list, $found) = @ARGV;
local $/;
open my $in, '<', $commands or die "$commands: $!";
my $entries = decode_json(<$in>);
open $in, '<', $list or die "$list: $!";
my @wanted = split /\n/, <$in>;
my %wanted = map { $_ => 1 } @wanted;

my @out;
for my $entry (@$entries) {
  my ($unit, @sources) = $entry->{file};
  if ($unit =~ m{/Unity/} && open my $unity, '<', $unit) {
    @sources = <$unity> =~ /^#include "(.*)"/mg;
  } else {
    @sources = $unit;
  }
  for my $source (grep { delete $wanted{$_} } @sources) {
    my $command = $entry->{command};
    next if grep { my @made = glob "$_/*.h"; !@made } $command =~ m{ -isystem (\Q$entry->{directory}\E/\S+)}g;
    $command =~ s/ -Xclang -include(?:-pch)? -Xclang \S+//g;
    $command =~ s/ -Winvalid-pch| -include \S*cmake_pch\S*//g;
    $command =~ s/ -c \Q$unit\E/ -c $source/;
    push @out, {directory => $entry->{directory}, file => $source, command => $command};
  }
}
my %known = map { $_->{file} => 1 } @out;
open my $names, '>', $found or die "$found: $!";
print $names "$_\n" for grep { $known{$_} } @wanted;
print JSON::PP->new->canonical->encode(\@out);
