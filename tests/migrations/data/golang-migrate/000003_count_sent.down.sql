DROP FUNCTION parcels_on_their_way();
