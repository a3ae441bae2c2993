"""Tables read out of files with every literal as it stands there.

slices      JSON cut into its members and elements, as raw bytes
stream      the elements of an array in a file, in bounded memory
place       where in a document the rows are
cells       what a cell is, and its text
source      a file as a table: columns, and runs of rows
sort        rows in the order of one column, in bounded memory
"""
